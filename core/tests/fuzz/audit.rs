//! Events of the trail: batches, lines, texts, and proofs.

use agent_sessions_core::anchor::{Format, Head, Proof, path_text};
use agent_sessions_core::audit::{self, Columns, Fields};
use agent_sessions_core::digest::Digest;
use agent_sessions_core::{element, merkle};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::sample::Index;
use proptest::{prop_assert, prop_assert_eq};

use crate::inputs::{changed, json, label, of};
use crate::{cases, for_all};

#[test]
fn any_text_is_an_event_or_refused() {
    for_all(prop_oneof![of(cases::EVENTS), of(cases::BATCHES)], |text| {
        let _ = element::parse_as::<audit::Element>("events", &text);
        if let Ok(lines) = element::parse_as::<audit::Line>("lines", &text) {
            for line in lines {
                audit::payload(&line.data);
                audit::recorded_at(&line.data);
                Fields::own().values(&line.data);
            }
        }
        Ok(())
    });
}

#[test]
fn any_text_is_looked_into_for_fields() {
    let texts = prop_oneof![json(), of(cases::JSON)];
    for_all((of(cases::FIELDS), texts), |(fields, data)| {
        if let Some(fields) = Fields::parse(&fields) {
            prop_assert!(serde_json::from_str::<serde_json::Map<_, _>>(&fields_text(&data)).is_ok());
            fields.values(&data);
        }
        if let Some(payload) = audit::payload(&data) {
            prop_assert!(data.contains(payload));
        }
        Ok(())
    });
}

/// An object that holds a text.
fn fields_text(data: &str) -> String {
    serde_json::json!({ "data": data }).to_string()
}

#[test]
fn the_text_of_an_event_says_what_its_columns_say() {
    let label = || label().prop_map(Option::unwrap_or_default);
    let labels = (label(), label(), label(), label(), proptest::option::of(label()));
    let times = any::<(u32, u32)>().prop_map(|(a, b)| (i64::from(a) * 1_000_003, i64::from(b) * 1_000_003));
    for_all((1..i64::MAX, labels, times, json()), |(seq, (tenant, stream, action, actor, target), times, payload)| {
        let columns = Columns {
            tenant: &tenant,
            stream: &stream,
            event_id: None,
            occurred_at: times.0,
            recorded_at: times.1,
            action: &action,
            actor: Some(&actor),
            target: target.as_deref(),
            session_id: None,
            status: None,
            attrs: Some("{\"payload\": 0}"),
        };
        let data = audit::data(seq, &columns, &payload).expect("the times have texts");
        prop_assert!(audit::is_own(seq, &tenant, &stream, &data) && audit::agrees(seq, &columns, &data));
        prop_assert!(!audit::agrees(seq - 1, &columns, &data));
        let earlier = Columns { occurred_at: times.0 - 1, ..columns };
        prop_assert!(!audit::agrees(seq, &earlier, &data));
        // The payload is what stands there, unless it is what serde_json does not read: then it is found in no other place.
        prop_assert!(audit::payload(&data).is_none_or(|found| found == payload));
        prop_assert_eq!(audit::recorded_at(&data).unwrap_or(times.1), times.1);
        Ok(())
    });
}

/// A proof among so many leaves, and its root.
fn proof() -> impl Strategy<Value = (Proof, Digest)> {
    (vec(any::<[u8; 4]>(), 1..20), any::<Index>(), vec(json(), 1..4), 1..1000_i64).prop_map(
        |(leaves, at, data, seq)| {
            let at = at.index(leaves.len());
            let hash = data.iter().fold(audit::GENESIS.to_owned(), |hash, data| audit::hash(&hash, data));
            let head = Head::Stream { tenant: "t".into(), stream: "s".into(), seq: seq + data.len() as i64 - 1, hash };
            let mut leaves: Vec<_> = leaves.iter().map(|leaf| merkle::leaf(leaf)).collect();
            leaves[at] = merkle::leaf(head.text().as_bytes());
            let mut tree = merkle::Tree::default();
            leaves.iter().for_each(|leaf| tree.push(*leaf));
            let path = path_text(&merkle::path(&leaves, at).expect("a leaf"));
            let (tenant, stream, prev_hash) = ("t".into(), "s".into(), audit::GENESIS.into());
            (Proof { format: Format::Version1, tenant, stream, seq, prev_hash, data, path }, tree.root())
        },
    )
}

#[test]
fn a_proof_leads_to_its_root_and_a_changed_one_does_not() {
    let proofs = proof().prop_map(|(proof, root)| {
        let text = serde_json::to_string(&proof).expect("a proof has a text");
        (proof, root, text)
    });
    let with_change = proofs.prop_flat_map(|(proof, root, text)| {
        let other = changed(proptest::prelude::Just(text.clone()), cases::JSON);
        (proptest::prelude::Just((proof, root, text)), other)
    });
    for_all(with_change, |((proof, root, text), other)| {
        prop_assert_eq!(proof.root(), Some(root));
        prop_assert_eq!(serde_json::from_str::<Proof>(&text).ok(), Some(proof.clone()));
        if let Ok(other) = serde_json::from_str::<Proof>(&other) {
            prop_assert!(other == proof || other.root() != Some(root), "{:?}", other);
        }
        Ok(())
    });
}

#[test]
fn a_leaf_is_read_as_it_was_written() {
    for_all(of(cases::LEAVES), |text| {
        if let Some(head) = Head::parse(&text) {
            prop_assert_eq!(Head::parse(&head.text()), Some(head));
        }
        Ok(())
    });
}
