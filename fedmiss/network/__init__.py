"""The federation between organisations: studies, kits, both ends' programs, and the engines that carry the frames."""
