"""What tests share: servers, sites, nodes and crawls of their own."""
