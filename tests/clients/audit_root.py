"""A second implementation of anchors and proofs, written from the documents: the leaves that COMMENT ON audit_anchor_leaf spells,
and the trees of RFC 6962 and RFC 9162.

    audit_root.py root          reads the heads of chains, a JSON object a line; prints the root and the number of leaves
    audit_root.py proof ROOT    reads proofs, one a line; prints how many there are, or which one does not lead to the root
"""

import hashlib
import json
import sys


def sha256(data):
    return hashlib.sha256(data).digest()


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def leaf_text(head):
    if head["chain"] == "stream":
        return compact(["stream", head["tenant"], head["stream"], head["seq"], head["hash"]])
    return compact(["session", head["tenant"], head["agent_id"], head["session_id"], head["position"], head["digest"]])


def place(head):
    """Streams by name, then sessions by session_id and agent_id; by the bytes of the names."""
    if head["chain"] == "stream":
        return (0, head["stream"].encode(), b"")
    return (1, head["session_id"].encode(), head["agent_id"].encode())


def tree_hash(leaves):
    """MTH of RFC 6962, section 2.1."""
    if not leaves:
        return sha256(b"")
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0])
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:]))


def root_of_proof(proof):
    """The nodes of RFC 6962, section 2.1, from the leaf up; the path says on which side each stands."""
    hashed = proof["prev_hash"]
    for data in proof["data"]:
        hashed = "sha256:" + sha256((hashed + "\n" + data).encode()).hex()
    head = proof["seq"] + len(proof["data"]) - 1
    node = sha256(b"\x00" + compact(["stream", proof["tenant"], proof["stream"], head, hashed]))
    for side, beside in (text.split(":") for text in proof["path"]):
        beside = bytes.fromhex(beside)
        node = sha256(b"\x01" + (beside + node if side == "l" else node + beside))
    return node.hex()


lines = [json.loads(line) for line in sys.stdin.buffer]
if sys.argv[1] == "root":
    leaves = [leaf_text(head) for head in sorted(lines, key=place)]
    print(tree_hash(leaves).hex(), len(leaves))
else:
    for proof in lines:
        if root_of_proof(proof) != sys.argv[2]:
            sys.exit(f"the proof of {proof['seq']} does not lead to the root")
    print(len(lines))
