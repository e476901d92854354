//! What is no proof, or not this one, is false.

use agent_sessions_tests::{Database, assert_sqlstate};
use serde_json::{Value, json};

use super::*;

/// A proof in a tree of seven leaves, and its root.
async fn proof(db: &Database) -> (Connection, Value, String) {
    let writer = orders(db).await;
    for stream in ["a", "b", "c", "x", "y", "z"] {
        fill(&writer, stream, 1).await;
    }
    let made = anchor(&writer).await;
    assert_eq!(made.chains, 7);
    let text = proofs::proof(&writer, "orders", 7, None).await;
    let proof = serde_json::from_str(&text).expect("JSON");
    assert_eq!(accepted(&writer, &[text], &made.root).await, [true]);
    (writer, proof, made.root)
}

/// What audit_check_proof says of each.
async fn accepted(connection: &Connection, proofs: &[String], root: &str) -> Vec<bool> {
    let sql = "select agent_sessions.audit_check_proof(p::json, $2) from unnest($1::text[]) with ordinality u (p, n) order by n";
    let rows = connection.query(sql, &[&proofs, &root]).await.expect("true or false");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn assert_none(connection: &Connection, proofs: &[String], root: &str) {
    assert!(!proofs.is_empty());
    let verdicts = accepted(connection, proofs, root).await;
    let accepted: Vec<&String> =
        proofs.iter().zip(verdicts).filter(|(_, accepted)| *accepted).map(|(proof, _)| proof).collect();
    assert_eq!(accepted, [] as [&String; 0]);
}

/// A text with another character at each place in turn, with one more, and with one less.
fn changed_texts(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let mut changed = Vec::new();
    for at in 0..=characters.len() {
        let (before, after) = (&characters[..at], &characters[at..]);
        let with = |between: &[char], after: &[char]| [before, between, after].concat().into_iter().collect::<String>();
        changed.push(with(&['0'], after));
        let Some((old, after)) = after.split_first() else { continue };
        changed.push(with(&[], after));
        let swapped = if old.is_lowercase() { old.to_ascii_uppercase() } else { old.to_ascii_lowercase() };
        changed.extend(
            ['0', '1', '+', ' ', '\u{0}', 'é', swapped]
                .iter()
                .filter(|new| *new != old)
                .map(|new| with(&[*new], after)),
        );
    }
    // One more of the same character is the same text twice over.
    changed.retain(|other| other != text);
    changed
}

/// Every value in place of which another one is put, by its pointer.
fn changed_values(value: &Value) -> Vec<Value> {
    match value {
        Value::String(text) => changed_texts(text).into_iter().map(Value::from).collect(),
        Value::Number(number) => {
            let number = number.as_i64().expect("a small number");
            [number + 1, number - 1, number + 7, -number - 1].into_iter().map(Value::from).collect()
        }
        Value::Array(elements) => {
            let mut changed = vec![json!([]), json!([elements.as_slice(), elements.as_slice()].concat())];
            for at in 0..elements.len() {
                let mut without = elements.clone();
                without.remove(at);
                let mut swapped = elements.clone();
                swapped.swap(at, elements.len() - 1);
                let mut doubled = elements.clone();
                doubled.insert(at, elements[at].clone());
                changed.extend([json!(without), json!(swapped), json!(doubled)]);
                for element in changed_values(&elements[at]) {
                    let mut other = elements.clone();
                    other[at] = element;
                    changed.push(json!(other));
                }
            }
            changed.retain(|other| other != value);
            changed
        }
        _ => panic!("a proof has no such value: {value}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_change_of_any_field_makes_it_false() {
    let db = Database::create("proof_changed").await;
    let (writer, proof, root) = proof(&db).await;
    for (field, value) in proof.as_object().expect("an object") {
        let others = changed_values(value);
        let with = |other: &Value| {
            let mut proof = proof.clone();
            proof[field] = other.clone();
            proof.to_string()
        };
        let proofs: Vec<String> = others.iter().map(with).collect();
        let verdicts = accepted(&writer, &proofs, &root).await;
        let accepted: Vec<&Value> =
            others.iter().zip(verdicts).filter(|(_, accepted)| *accepted).map(|(other, _)| other).collect();
        assert!(accepted.is_empty(), "{field} instead of {value}: {accepted:#?}");
    }
    for root in changed_texts(&root).iter().filter(|root| !root.contains('\0')) {
        assert_eq!(accepted(&writer, &[proof.to_string()], root).await, [false], "{root}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_proof_is_false_and_no_error() {
    let db = Database::create("proof_malformed").await;
    let (writer, proof, root) = proof(&db).await;
    let mut malformed: Vec<String> = [
        "null",
        "true",
        "0",
        "\"\"",
        "[]",
        "{}",
        "[{}]",
        "1e400000",
        "\"\\u0000\"",
        "\"\\ud83d\"",
        "{\"a\":1,\"a\":2}",
    ]
    .map(str::to_owned)
    .into();
    malformed.push(json!([proof]).to_string());
    malformed.push(json!(proof.to_string()).to_string());
    malformed.push(format!("{}{}{}", "[".repeat(1_000), proof, "]".repeat(1_000)));
    let text = proof.to_string();
    for field in proof.as_object().expect("an object").keys() {
        for other in
            [json!(null), json!(true), json!(1.5), json!({}), json!([[]]), json!([1]), json!([null]), json!("\u{0}")]
        {
            let mut changed = proof.clone();
            changed[field] = other;
            malformed.push(changed.to_string());
        }
        let mut without = proof.clone();
        without.as_object_mut().expect("an object").remove(field);
        malformed.push(without.to_string());
        // The same field twice, once more with the same value.
        malformed.push(format!("{},\"{field}\":{}}}", &text[..text.len() - 1], proof[field]));
        malformed.push(text.replace(&format!("\"{field}\":"), &format!("\"{}\":", field.to_uppercase())));
    }
    let mut more = proof.clone();
    more["more"] = json!(1);
    malformed.push(more.to_string());
    for (field, spelling) in [
        ("seq", "7.0"),
        ("seq", "7e0"),
        ("seq", "\"7\""),
        ("seq", "9223372036854775807"),
        ("seq", "1e400000"),
        ("seq", "-9223372036854775808"),
        ("seq", "9223372036854775808"),
    ] {
        malformed.push(text.replace(&format!("\"{field}\":{}", proof[field]), &format!("\"{field}\":{spelling}")));
    }
    assert!(malformed.iter().all(|malformed| *malformed != text));
    assert_none(&writer, &malformed, &root).await;
    for root in [
        "",
        "0",
        "sha256:",
        "x",
        "é",
        &root[1..],
        &format!("{root}0"),
        &format!(" {root}"),
        &"0".repeat(64),
        &"é".repeat(32),
    ] {
        assert_eq!(accepted(&writer, std::slice::from_ref(&text), root).await, [false], "{root}");
    }
    // What is not given is not judged.
    for call in ["audit_check_proof(null, 'x')", "audit_check_proof('{}', null)"] {
        assert_sqlstate!(writer.query(&format!("select agent_sessions.{call}"), &[]).await, "SE001");
    }
}

/// A path says on which side each node stands, and is as long as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_any_length_is_checked_at_once() {
    let db = Database::create("proof_paths").await;
    let (writer, proof, root) = proof(&db).await;
    let path: Vec<String> = serde_json::from_value(proof["path"].clone()).expect("texts");
    let swapped: Vec<String> = path
        .iter()
        .map(|node| match node.split_once(':').expect("a side") {
            ("l", digest) => format!("r:{digest}"),
            (_, digest) => format!("l:{digest}"),
        })
        .collect();
    let longer = [&path[..], &["l:".to_owned() + &"0".repeat(64)]].concat();
    let endless = vec!["r:".to_owned() + &"0".repeat(64); 100_000];
    let with = |path: &[String]| {
        let mut changed = proof.clone();
        changed["path"] = json!(path);
        changed.to_string()
    };
    assert!(!path.is_empty());
    writer.run("set statement_timeout = '10 s'").await;
    assert_none(&writer, &[with(&swapped), with(&longer), with(&endless), with(&[]), with(&path[1..])], &root).await;
}
