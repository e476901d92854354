//! Merkle trees as in RFC 6962, section 2.1: leaves are hashed behind a byte 0x00, nodes behind 0x01.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// The root of no leaves.
pub fn empty_root() -> Digest {
    Sha256::digest([]).into()
}

pub fn leaf(data: &[u8]) -> Digest {
    Sha256::new().chain_update([0x00]).chain_update(data).finalize().into()
}

fn node(left: &Digest, right: &Digest) -> Digest {
    Sha256::new().chain_update([0x01]).chain_update(left).chain_update(right).finalize().into()
}

/// A tree that is grown leaf by leaf, in memory that grows with the logarithm of their number.
#[derive(Default)]
pub struct Tree {
    /// The roots of the full subtrees from left to right, each with the number of its leaves.
    full: Vec<(u64, Digest)>,
}

impl Tree {
    pub fn push(&mut self, leaf: Digest) {
        let (mut count, mut root) = (1, leaf);
        while let Some((_, left)) = self.full.pop_if(|(left, _)| *left == count) {
            root = node(&left, &root);
            count *= 2;
        }
        self.full.push((count, root));
    }

    pub fn root(&self) -> Digest {
        let mut subtrees = self.full.iter().rev().map(|(_, root)| *root);
        match subtrees.next() {
            Some(last) => subtrees.fold(last, |right, left| node(&left, &right)),
            None => empty_root(),
        }
    }
}

/// A node beside the way from a leaf to the root, on one side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Left(Digest),
    Right(Digest),
}

/// What is beside the way from the leaf at `index` to the root, the lowest first. `None` if there is no such leaf.
pub fn path(leaves: &[Digest], index: usize) -> Option<Vec<Beside>> {
    if index >= leaves.len() {
        return None;
    }
    let mut path = Vec::new();
    let (mut leaves, mut index) = (leaves, index);
    while leaves.len() > 1 {
        let (left, right) = leaves.split_at(left_size(leaves.len()));
        if index < left.len() {
            path.push(Beside::Right(root(right)));
            leaves = left;
        } else {
            path.push(Beside::Left(root(left)));
            index -= left.len();
            leaves = right;
        }
    }
    path.reverse();
    Some(path)
}

/// The root that a leaf's path leads to.
pub fn root_by_path(leaf: Digest, path: &[Beside]) -> Digest {
    path.iter().fold(leaf, |below, beside| match beside {
        Beside::Left(left) => node(left, &below),
        Beside::Right(right) => node(&below, right),
    })
}

/// The leaves of a tree's left half: the largest power of two that is less than their number.
fn left_size(size: usize) -> usize {
    1 << (size - 1).ilog2()
}

fn root(leaves: &[Digest]) -> Digest {
    let mut tree = Tree::default();
    leaves.iter().for_each(|leaf| tree.push(*leaf));
    tree.root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::hex;

    /// The leaves of the test vectors of RFC 6962's reference implementation.
    const DATA: [&str; 8] =
        ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];

    /// The roots of the first so many of them.
    const ROOTS: [&str; 8] = [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn leaves(count: usize) -> Vec<Digest> {
        DATA.iter()
            .cycle()
            .take(count)
            .enumerate()
            .map(|(n, data)| match n {
                0..8 => leaf(&bytes(data)),
                _ => leaf(n.to_string().as_bytes()),
            })
            .collect()
    }

    #[test]
    fn the_known_roots() {
        assert_eq!(hex(&empty_root()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        for (count, known) in (1..).zip(ROOTS) {
            assert_eq!(hex(&root(&leaves(count))), known, "{count} leaves");
        }
    }

    #[test]
    fn the_known_paths() {
        let hexed = |path: Vec<Beside>| {
            let digest = |beside: &Beside| match beside {
                Beside::Left(digest) | Beside::Right(digest) => hex(digest),
            };
            path.iter().map(digest).collect::<Vec<_>>()
        };
        assert_eq!(hexed(path(&leaves(1), 0).unwrap()), Vec::<String>::new());
        assert_eq!(
            hexed(path(&leaves(8), 0).unwrap()),
            [
                "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
            ]
        );
        assert_eq!(path(&leaves(3), 3), None);
    }

    #[test]
    fn every_leaf_of_every_size_leads_to_the_root() {
        for size in 1..70 {
            let leaves = leaves(size);
            for (index, leaf) in leaves.iter().enumerate() {
                let path = path(&leaves, index).unwrap();
                assert_eq!(root_by_path(*leaf, &path), root(&leaves), "{index} of {size}");
                if let Some(last) = path.len().checked_sub(1) {
                    assert_ne!(root_by_path(*leaf, &path[..last]), root(&leaves));
                    let mut other = path.clone();
                    other[last] = match other[last] {
                        Beside::Left(digest) => Beside::Right(digest),
                        Beside::Right(digest) => Beside::Left(digest),
                    };
                    assert_ne!(root_by_path(*leaf, &other), root(&leaves));
                }
            }
        }
    }
}
