//! Anchors: the Merkle root over the heads of chains, and the proof that an audit event is under it.
//!
//! A leaf is a JSON array without white space, so that it can be hashed again with any tool:
//! `["stream",tenant,stream,seq,hash]`, or `["session",tenant,agent_id,session_id,position,digest]`.

use serde::{Deserialize, Serialize};

use crate::audit;
use crate::digest::{Digest, hex, unhex};
use crate::merkle::{self, Beside};

/// The head of a chain, as an anchor takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    Stream {
        tenant: String,
        stream: String,
        seq: i64,
        hash: String,
    },
    /// `digest` is in hex.
    Session {
        tenant: String,
        agent_id: String,
        session_id: String,
        position: i64,
        digest: String,
    },
}

impl Head {
    /// The text that is hashed as a leaf.
    pub fn text(&self) -> String {
        match self {
            Head::Stream { tenant, stream, seq, hash } => {
                serde_json::json!(["stream", tenant, stream, seq, hash]).to_string()
            }
            Head::Session { tenant, agent_id, session_id, position, digest } => {
                serde_json::json!(["session", tenant, agent_id, session_id, position, digest]).to_string()
            }
        }
    }

    pub fn parse(text: &str) -> Option<Head> {
        let stream = serde_json::from_str::<(String, String, String, i64, String)>(text);
        if let Ok((kind, tenant, stream, seq, hash)) = stream {
            return (kind == "stream").then_some(Head::Stream { tenant, stream, seq, hash });
        }
        let session = serde_json::from_str::<(String, String, String, String, i64, String)>(text);
        let (kind, tenant, agent_id, session_id, position, digest) = session.ok()?;
        (kind == "session").then_some(Head::Session { tenant, agent_id, session_id, position, digest })
    }
}

/// Shows that an event was in a stream when an anchor was made: the texts from the event's on to the anchored head's, and that
/// head's path to the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    pub format: Format,
    pub tenant: String,
    pub stream: String,
    pub seq: i64,
    pub prev_hash: String,
    pub data: Vec<String>,
    /// What is beside the way from the leaf up, in hex behind `l:` or `r:` for its side.
    pub path: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    #[serde(rename = "agent_sessions/proof/1")]
    Version1,
}

impl Proof {
    /// The root that the proof leads to; `None` if it leads nowhere.
    pub fn root(&self) -> Option<Digest> {
        let hash = self.data.iter().fold(self.prev_hash.clone(), |hash, data| audit::hash(&hash, data));
        let last = i64::try_from(self.data.len()).ok()?.checked_sub(1).filter(|last| *last >= 0)?;
        let head = Head::Stream {
            tenant: self.tenant.clone(),
            stream: self.stream.clone(),
            seq: self.seq.checked_add(last)?,
            hash,
        };
        let path: Option<Vec<Beside>> = self.path.iter().map(|node| beside(node)).collect();
        Some(merkle::root_by_path(merkle::leaf(head.text().as_bytes()), &path?))
    }
}

/// A path in the form of a proof.
pub fn path_text(path: &[Beside]) -> Vec<String> {
    let text = |beside: &Beside| match beside {
        Beside::Left(left) => format!("l:{}", hex(left)),
        Beside::Right(right) => format!("r:{}", hex(right)),
    };
    path.iter().map(text).collect()
}

fn beside(text: &str) -> Option<Beside> {
    match text.split_once(':')? {
        ("l", left) => unhex(left).map(Beside::Left),
        ("r", right) => unhex(right).map(Beside::Right),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seq: i64, hash: &str) -> Head {
        Head::Stream { tenant: "t\"".into(), stream: "".into(), seq, hash: hash.into() }
    }

    fn session(number: i64) -> Head {
        Head::Session {
            tenant: "t\"".into(),
            agent_id: "a".into(),
            session_id: number.to_string(),
            position: number,
            digest: hex(&[number as u8; 32]),
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        assert_eq!(stream(7, "sha256:00").text(), "[\"stream\",\"t\\\"\",\"\",7,\"sha256:00\"]");
        for head in [stream(7, "x"), session(3)] {
            assert_eq!(Head::parse(&head.text()), Some(head));
        }
        for bad in
            ["", "[]", "[\"stream\",1,\"\",7,\"\"]", "[\"other\",\"\",\"\",7,\"\"]", "[\"session\",\"\",\"\",7,\"\"]"]
        {
            assert_eq!(Head::parse(bad), None, "{bad}");
        }
    }

    /// A proof for the second of three events, and the root.
    fn proof() -> (Proof, Digest) {
        let data = ["{\"seq\":1}", "{\"seq\":2}", "{\"seq\":3}"];
        let first = audit::hash(audit::GENESIS, data[0]);
        let head = data[1..].iter().fold(first.clone(), |hash, data| audit::hash(&hash, data));
        let heads = [session(0), session(1), stream(3, &head), session(2)];
        let leaves: Vec<Digest> = heads.iter().map(|head| merkle::leaf(head.text().as_bytes())).collect();
        let mut tree = merkle::Tree::default();
        leaves.iter().for_each(|leaf| tree.push(*leaf));
        let proof = Proof {
            format: Format::Version1,
            tenant: "t\"".into(),
            stream: "".into(),
            seq: 2,
            prev_hash: first,
            data: data[1..].iter().map(|data| data.to_string()).collect(),
            path: path_text(&merkle::path(&leaves, 2).unwrap()),
        };
        (proof, tree.root())
    }

    #[test]
    fn a_proof_leads_to_the_root() {
        let (proof, root) = proof();
        assert_eq!(proof.root(), Some(root));
        let text = serde_json::to_string(&proof).unwrap();
        assert_eq!(serde_json::from_str::<Proof>(&text).unwrap(), proof);
    }

    #[test]
    fn a_changed_proof_does_not() {
        let (proof, root) = proof();
        let mut changed = vec![proof.clone(); 8];
        changed[0].data[0].push(' ');
        changed[1].data.pop();
        changed[2].seq = 1;
        changed[3].prev_hash = audit::GENESIS.into();
        changed[4].path[0] = changed[4].path[0].replace("r:", "l:");
        changed[5].path.pop();
        changed[6].stream = "other".into();
        changed[7].data.clear();
        for proof in changed {
            assert_ne!(proof.root(), Some(root), "{proof:?}");
        }
        for path in ["zz".repeat(32), "\u{e9}".repeat(32), "ab".repeat(32), "l:".to_owned() + &"AB".repeat(32)] {
            assert_eq!(Proof { path: vec![path], ..proof.clone() }.root(), None);
        }
    }
}
