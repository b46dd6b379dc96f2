//! Picks the kernels of a node. The match has no wildcard: a new op is a compile error here until it is decided.
