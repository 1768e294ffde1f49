from fedmiss.community.run import build_community as build_community
from fedmiss.community.settings import CommunitySettings as CommunitySettings
