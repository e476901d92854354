//! Lines of an export, one by one and in a row.

use std::collections::BTreeMap;

use agent_sessions_core::archive::{Ancestor, Check, Chunk, End, Entry, Format, Hex, Line, Session, Sum, Text, Time};
use agent_sessions_core::digest::{Digest, Genesis, Link, content};
use agent_sessions_core::element;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use proptest::{prop_assert, prop_assert_eq};

use crate::inputs::{changed, json, label, of};
use crate::{cases, for_all};

// Boxed: by value, the strategies would fill a test's stack.
fn text() -> BoxedStrategy<Option<Text<'static>>> {
    prop_oneof![
        Just(None),
        of(cases::NAMES).prop_map(|text| Some(text.into())),
        json().prop_map(|text| Some(text.into()))
    ]
    .boxed()
}

fn number() -> BoxedStrategy<Option<i64>> {
    prop_oneof![
        2 => Just(None),
        3 => (0..6_i64).prop_map(Some),
        1 => any::<i64>().prop_map(Some),
        1 => select(&[i64::MIN, -1, i64::MAX - 1, i64::MAX][..]).prop_map(Some),
    ]
    .boxed()
}

fn entry() -> BoxedStrategy<Entry<'static>> {
    let ops = select(&["append", "open", "revise", "retract", "retract_from", "trim", "erase", "other"][..]);
    let texts = (option::of(ops), text(), text(), text(), text(), text());
    let digest = || option::weighted(0.9, any::<[u8; 32]>());
    let digests = (any::<Option<[u8; 16]>>(), digest(), digest());
    (number(), number(), number(), texts, digests)
        .prop_map(|(position, target, at, texts, digests)| Entry {
            position,
            op: texts.0.map(Text::from),
            kind: texts.1,
            item_id: texts.2,
            tag: texts.3,
            payload: texts.4,
            attrs: texts.5,
            target,
            salt: digests.0.map(Hex),
            content_digest: digests.1.map(Hex),
            digest: digests.2.map(Hex),
            created_at: at.map(Time),
            ..Entry::default()
        })
        .boxed()
}

fn session() -> BoxedStrategy<Session<'static>> {
    let numbers = (number(), number(), number(), number());
    (any::<bool>(), text(), text(), text(), text(), numbers, any::<Option<[u8; 32]>>())
        .prop_map(|(is_export, tenant, session_id, title, state, numbers, digest)| Session {
            format: is_export.then_some(Format::Version1),
            tenant,
            agent_id: is_export.then(|| "".into()),
            session_id,
            title,
            state,
            created_at: numbers.0.map(Time),
            revision: numbers.1,
            fork_position: numbers.2,
            fork_digest: digest.map(Hex),
            base_position: numbers.3,
            base_digest: digest.map(Hex),
            ..Session::default()
        })
        .boxed()
}

fn line() -> BoxedStrategy<Line<'static>> {
    let ancestor = (number(), any::<Option<[u8; 32]>>(), any::<i64>()).prop_map(|(position, digest, at)| Ancestor {
        agent_id: "".into(),
        session_id: "o".into(),
        created_at: Time(at),
        fork_position: position,
        fork_digest: digest.map(Hex),
        base_position: position,
        base_digest: digest.map(Hex),
    });
    let chunk = (0..4_i64, any::<i32>(), of(cases::NAMES)).prop_map(|(target, chunk_no, chunk)| Chunk {
        target,
        chunk_no,
        chunk: chunk.into(),
    });
    prop_oneof![
        1 => session().prop_map(|session| Line::Session(Box::new(session))),
        1 => ancestor.prop_map(Line::Ancestor),
        4 => entry().prop_map(Line::Entry),
        1 => entry().prop_map(Line::Explanation),
        1 => chunk.prop_map(Line::Chunk),
        1 => any::<[u8; 32]>().prop_map(|sha256| Line::End(End { sha256: Hex(sha256) })),
    ]
    .boxed()
}

#[test]
fn a_line_is_read_as_it_was_written() {
    for_all(line(), |line| {
        let text = line.text();
        prop_assert!(!text.contains('\n'));
        prop_assert_eq!(Line::parse(&text).ok(), Some(line));
        Ok(())
    });
}

#[test]
fn any_text_is_a_line_or_refused() {
    let texts = prop_oneof![of(cases::LINES), changed(line().prop_map(|line| line.text()), cases::LINES)];
    for_all(texts, |text| {
        if let Ok(line) = Line::parse(&text) {
            let objects = serde_json::from_str::<BTreeMap<String, serde_json::Map<_, _>>>(&text);
            prop_assert!(objects.is_ok_and(|objects| objects.len() == 1));
            prop_assert_eq!(Line::parse(&line.text()).ok(), Some(line));
        }
        Ok(())
    });
    for_all(of(cases::LINES), |text| {
        if let Ok(lines) = element::split::<3>("lines", &text) {
            prop_assert!(lines.len() <= 3);
        }
        Ok(())
    });
}

#[test]
fn lines_in_any_row_are_checked_without_a_panic() {
    let begun = (session(), vec(line(), 0..8)).prop_map(|(session, lines)| {
        std::iter::once(Line::Session(Box::new(session))).chain(lines).collect::<Vec<Line>>()
    });
    for_all(prop_oneof![vec(line(), 0..4), begun], |lines| {
        let mut check = Check::default();
        for line in lines {
            match check.take(line) {
                Ok(()) => {}
                Err(error) => {
                    prop_assert!(["SE001", "SE010"].contains(&error.code()));
                    return Ok(());
                }
            }
        }
        if let Err(error) = check.finish() {
            prop_assert!(["SE001", "SE017"].contains(&error.code()));
        }
        Ok(())
    });
}

/// An export of a log of items.
fn export() -> impl Strategy<Value = Vec<Line<'static>>> {
    let item = (json(), label(), any::<[u8; 16]>(), any::<u32>());
    (label(), vec(item, 0..6)).prop_map(|(title, items)| {
        let session = Session {
            format: Some(Format::Version1),
            tenant: Some("t".into()),
            agent_id: Some("".into()),
            session_id: Some("s".into()),
            created_at: Some(Time(1)),
            revision: Some(0),
            title: title.map(Text::from),
            ..Session::default()
        };
        let genesis = Genesis {
            tenant: "t",
            agent_id: "",
            session_id: "s",
            created_at: 1,
            fork_position: None,
            forked_from: Digest::default(),
        };
        let mut previous = genesis.digest();
        let mut lines = vec![Line::Session(Box::new(session))];
        for (position, (payload, tag, salt, at)) in (0..).zip(items) {
            let content = content(&salt, Some(&payload), None);
            let link = Link {
                position,
                op: "append",
                kind: Some("message"),
                item_id: None,
                tag: tag.as_deref(),
                author: None,
                target: None,
                created_at: at.into(),
            };
            previous = link.digest(&previous, &content);
            lines.push(Line::Entry(Entry {
                position: Some(position),
                op: Some("append".into()),
                kind: Some("message".into()),
                tag: tag.clone().map(Text::from),
                payload: Some(payload.into()),
                salt: Some(Hex(salt)),
                content_digest: Some(Hex(content)),
                digest: Some(Hex(previous)),
                created_at: Some(Time(at.into())),
                ..Entry::default()
            }));
        }
        ended(lines)
    })
}

fn ended(mut lines: Vec<Line<'static>>) -> Vec<Line<'static>> {
    let mut sum = Sum::default();
    lines.iter().for_each(|line| sum.add(&line.text()));
    lines.push(Line::End(sum.end()));
    lines
}

fn is_taken(lines: Vec<Line<'static>>) -> bool {
    let mut check = Check::default();
    lines.into_iter().all(|line| check.take(line).is_ok()) && check.finish().is_ok()
}

#[test]
fn an_export_is_taken_and_a_changed_one_is_not() {
    let with_change = (export(), any::<Index>()).prop_flat_map(|(lines, at)| {
        let at = at.index(lines.len());
        let other = changed(Just(lines[at].text()), cases::LINES);
        (Just(lines), Just(at), other)
    });
    for_all(with_change, |(lines, at, other)| {
        prop_assert!(is_taken(lines.clone()));
        if let Ok(other) = Line::parse(&other)
            && other != lines[at]
        {
            let is_entry = matches!((&lines[at], &other), (Line::Entry(_), Line::Entry(_)));
            let mut changed = lines;
            changed[at] = other;
            prop_assert!(!is_taken(changed.clone()));
            // An end that is made anew hides no change of an entry.
            if is_entry {
                changed.pop();
                prop_assert!(!is_taken(ended(changed)));
            }
        }
        Ok(())
    });
}
