from fedmiss.models.gmm import GMM as GMM
