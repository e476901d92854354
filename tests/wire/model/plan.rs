//! Random plans: sequences of steps. The pools are small, so that steps meet.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Union};

use super::step::{
    Call, Document, Given, Item, Kind, Lease, NAMES, Number, OnConflict, OnMissing, Page, Step, Which, Who,
};

/// The longest plan; the average is half of it.
pub const LONGEST: usize = 120;

const PAYLOADS: [&str; 6] = ["1", "2", r#"{"b" : 1,"a":2}"#, r#""\u0000""#, "1e2", "null"];
const KINDS: [&str; 3] = ["message", "tool", "seed"];
const ITEM_IDS: [&str; 5] = ["i", "j", "k", "l", "m"];
const TAGS: [&str; 2] = ["red", "blue"];
const ATTRS: [&str; 3] = [r#"{"n": 1}"#, r#"{"n": 2}"#, "{}"];
const TITLES: [&str; 4] = ["T", "n%d", "%d of %d", "n1"];
const CHUNKS: [&str; 3] = ["x", "yz", ""];

pub fn plan() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=LONGEST)
}

fn step() -> impl Strategy<Value = Step> {
    let calls = vec![
        (5, step_of(free(), create())),
        (6, step_of(existing(), set())),
        (22, step_of(existing(), append())),
        (4, raw(step_of(existing(), plain_append()))),
        (8, step_of(existing(), batch())),
        (8, step_of(existing(), revise())),
        (3, raw(step_of(existing(), plain_revise()))),
        (6, step_of(existing(), retract())),
        (3, raw(step_of(existing(), plain_retract()))),
        (2, step_of(existing(), Just(Call::Pop))),
        (6, step_of(such(Kind::Streaming), delta())),
        (3, raw(step_of(such(Kind::Streaming), delta()))),
        (7, step_of(existing(), branch())),
        (2, step_of(such(Kind::Branch), Just(Call::Flatten))),
        (4, step_of(existing(), trim())),
        (5, step_of(existing(), erase())),
        (2, step_of(existing(), delete())),
        (2, raw(step_of(such(Kind::Source), delete()))),
        (5, step_of(existing(), claim())),
        (2, holder(step_of(such(Kind::Leased), Just(Call::Extend)))),
        (2, holder(step_of(such(Kind::Leased), Just(Call::Release)))),
        (1, step_of(such(Kind::Leased), Just(Call::Break))),
        (2, step_of(existing(), Just(Call::Expire))),
        (8, step_of(existing(), history())),
        (2, step_of(existing(), context())),
        (2, step_of(existing(), page().prop_map(|page| Call::Log { page }))),
    ];
    Union::new_weighted(calls)
}

fn step_of(
    session: impl Strategy<Value = Who> + 'static,
    call: impl Strategy<Value = Call> + 'static,
) -> BoxedStrategy<Step> {
    (session, lease(), call).prop_map(|(session, lease, call)| Step { session, lease, raw: false, call }).boxed()
}

fn raw(step: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    step.prop_map(|step| Step { raw: true, ..step }).boxed()
}

/// Whoever calls this has the lease, as a rule, and there is no other way than the argument.
fn holder(step: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let lease = prop_oneof![4 => Just(Lease::Live { by_setting: false }), 1 => lease()];
    (step, lease).prop_map(|(step, lease)| Step { lease, ..step }).boxed()
}

/// The first ones are the most frequent: sessions have to become long, too.
fn existing() -> impl Strategy<Value = Who> {
    prop_oneof![8 => (0..3_usize).prop_map(Who::Existing), 8 => (0..7_usize).prop_map(Who::Existing), 1 => named()]
}

fn such(kind: Kind) -> impl Strategy<Value = Who> {
    prop_oneof![8 => (0..4_usize).prop_map(move |n| Who::Such(kind, n)), 1 => existing()]
}

fn free() -> impl Strategy<Value = Who> {
    prop_oneof![4 => (0..7_usize).prop_map(Who::Free), 1 => named()]
}

fn named() -> impl Strategy<Value = Who> {
    select(&NAMES[..]).prop_map(Who::Is)
}

fn lease() -> impl Strategy<Value = Lease> {
    prop_oneof![
        2 => Just(Lease::Nothing),
        10 => any::<bool>().prop_map(|by_setting| Lease::Live { by_setting }),
        2 => Just(Lease::All),
        1 => (0..4_usize, any::<bool>()).prop_map(|(which, by_setting)| Lease::Lost { which, by_setting }),
    ]
}

fn on_missing() -> impl Strategy<Value = OnMissing> {
    prop_oneof![2 => Just(OnMissing::Error), 4 => Just(OnMissing::Create), 1 => Just(OnMissing::Ignore)]
}

fn on_conflict() -> impl Strategy<Value = OnConflict> {
    select(&[OnConflict::Error, OnConflict::Keep, OnConflict::Replace][..])
}

/// Where an item may be.
fn target() -> impl Strategy<Value = Number> {
    prop_oneof![
        8 => (0..6_usize).prop_map(Number::Live),
        2 => (0..20_usize).prop_map(Number::Entry),
        1 => (0..2_i64).prop_map(Number::Next),
    ]
}

/// Any position, and those that are none.
fn position() -> impl Strategy<Value = Number> {
    prop_oneof![
        4 => (0..20_usize).prop_map(Number::Entry),
        1 => (0..3_i64).prop_map(Number::Next),
        1 => (-1..3_i64).prop_map(Number::Is),
    ]
}

fn expected_position() -> impl Strategy<Value = Option<Number>> {
    weighted(0.15, prop_oneof![3 => Just(Number::Next(0)), 1 => (-1..=1_i64).prop_map(Number::Next), 1 => position()])
}

fn one(pool: &'static [&'static str], probability: f64) -> impl Strategy<Value = Option<&'static str>> {
    weighted(probability, select(pool))
}

fn few(pool: &'static [&'static str], probability: f64) -> impl Strategy<Value = Option<Vec<&'static str>>> {
    weighted(probability, vec(select(pool), 0..3))
}

fn item() -> impl Strategy<Value = Item> {
    (
        select(&PAYLOADS[..]),
        one(&KINDS, 0.2),
        one(&ITEM_IDS, 0.5),
        one(&TAGS, 0.2),
        one(&["u"], 0.1),
        one(&ATTRS, 0.3),
        weighted(0.1, position()),
        weighted(0.3, on_conflict()),
    )
        .prop_map(|(payload, kind, item_id, tag, author, attrs, kept_from, on_conflict)| Item {
            payload,
            kind,
            item_id,
            tag,
            author,
            attrs,
            kept_from,
            on_conflict,
        })
}

fn document() -> impl Strategy<Value = Document> {
    prop_oneof![
        8 => vec(0..4_u8, 4).prop_map(|values| {
            let members = ["b", "a", "d", "c"].into_iter().zip(values);
            Document::Object(members.filter(|(_, value)| *value > 0).collect())
        }),
        1 => (0..2_u8).prop_map(Document::Number),
    ]
}

fn given() -> impl Strategy<Value = Given> {
    (
        one(&TITLES, 0.3),
        one(&["closed", "busy"], 0.2),
        one(&["o", "p"], 0.2),
        one(&["cli", "web"], 0.2),
        weighted(0.3, document()),
        weighted(0.4, document()),
        weighted(0.1, 0..9_i64),
        weighted(0.2, Just(())),
    )
        .prop_map(|(title, status, owner, origin, metadata, state, input_tokens, expired)| Given {
            title,
            status,
            owner,
            origin,
            metadata,
            state,
            input_tokens,
            expired: expired.is_some(),
        })
}

fn create() -> impl Strategy<Value = Call> {
    (given(), weighted(0.4, existing()), weighted(0.5, vec(item(), 0..4)), any::<bool>())
        .prop_map(|(given, parent, items, keep)| Call::Create { given, parent, items, keep })
}

fn set() -> impl Strategy<Value = Call> {
    let revision = prop_oneof![1 => Just(0_i64), 1 => -1..=1_i64].prop_map(Number::Revision);
    (given(), any::<bool>(), weighted(0.5, revision), on_missing())
        .prop_map(|(given, merge, expected, on_missing)| Call::Set { given, merge, expected, on_missing })
}

fn append() -> impl Strategy<Value = Call> {
    (item(), weighted(0.3, Just(())), expected_position(), on_missing()).prop_map(
        |(item, open, expected, on_missing)| Call::Append { item, open: open.is_some(), expected, on_missing },
    )
}

/// What one INSERT can say: it has no words for conflicts.
fn plain_append() -> impl Strategy<Value = Call> {
    append().prop_map(|mut call| {
        if let Call::Append { item, on_missing, .. } = &mut call {
            (item.on_conflict, *on_missing) = (None, OnMissing::Error);
        }
        call
    })
}

fn batch() -> impl Strategy<Value = Call> {
    (
        vec(item(), 0..5),
        expected_position(),
        prop_oneof![3 => Just(OnConflict::Error), 1 => on_conflict()],
        on_missing(),
    )
        .prop_map(|(items, expected, on_conflict, on_missing)| Call::Batch {
            items,
            expected,
            on_conflict,
            on_missing,
        })
}

fn revise() -> impl Strategy<Value = Call> {
    let which = prop_oneof![3 => target().prop_map(Which::At), 2 => select(&ITEM_IDS[..]).prop_map(Which::WithId)];
    (which, select(&PAYLOADS[..]), one(&KINDS, 0.1), one(&ATTRS, 0.2), expected_position())
        .prop_map(|(which, payload, kind, attrs, expected)| Call::Revise { which, payload, kind, attrs, expected })
}

fn plain_revise() -> impl Strategy<Value = Call> {
    (target(), select(&PAYLOADS[..]), one(&ATTRS, 0.2), expected_position()).prop_map(
        |(target, payload, attrs, expected)| Call::Revise {
            which: Which::At(target),
            payload,
            kind: None,
            attrs,
            expected,
        },
    )
}

fn retract() -> impl Strategy<Value = Call> {
    let targets = weighted(0.6, vec(target(), 0..3));
    (targets, few(&ITEM_IDS, 0.3), weighted(0.2, target()), expected_position(), any::<bool>()).prop_map(
        |(targets, item_ids, from_target, expected, ignore)| Call::Retract {
            targets,
            item_ids,
            from_target,
            expected,
            ignore,
        },
    )
}

fn plain_retract() -> impl Strategy<Value = Call> {
    (target(), any::<bool>(), expected_position()).prop_map(|(target, range, expected)| Call::Retract {
        targets: (!range).then(|| vec![target]),
        item_ids: None,
        from_target: range.then_some(target),
        expected,
        ignore: false,
    })
}

fn delta() -> impl Strategy<Value = Call> {
    let target = prop_oneof![8 => Just(Number::Open), 1 => target()];
    let chunk_no = prop_oneof![4 => Just(0), 1 => Just(-1), 1 => -2..3_i64].prop_map(Number::Chunks);
    (target, chunk_no, select(&CHUNKS[..])).prop_map(|(target, chunk_no, chunk)| Call::Delta {
        target,
        chunk_no,
        chunk,
    })
}

fn branch() -> impl Strategy<Value = Call> {
    let at = prop_oneof![
        3 => Just((None, None, None)),
        4 => position().prop_map(|at| (Some(at), None, None)),
        2 => select(&ITEM_IDS[..]).prop_map(|id| (None, Some(id), None)),
        2 => select(&TAGS[..]).prop_map(|tag| (None, None, Some(tag))),
        1 => (weighted(0.7, position()), one(&ITEM_IDS, 0.7), one(&TAGS, 0.7)),
    ];
    let inherit = prop_oneof![5 => Just(true), 1 => Just(false)];
    (at, free(), inherit, one(&PAYLOADS, 0.2), one(&TITLES, 0.6)).prop_map(
        |((at_target, at_item_id, at_tag), to, inherit, seed, title)| Call::Branch {
            at_target,
            at_item_id,
            at_tag,
            to,
            inherit,
            seed,
            title,
        },
    )
}

fn trim() -> impl Strategy<Value = Call> {
    (position(), any::<bool>()).prop_map(|(keep_from, force)| Call::Trim { keep_from, force })
}

fn erase() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => target().prop_map(|target| (Some(target), None)),
        1 => position().prop_map(|target| (Some(target), None)),
        4 => select(&ITEM_IDS[..]).prop_map(|id| (None, Some(id))),
        1 => (weighted(0.5, target()), one(&ITEM_IDS, 0.5)),
    ]
    .prop_map(|(target, item_id)| Call::Erase { target, item_id })
}

fn delete() -> impl Strategy<Value = Call> {
    any::<bool>().prop_map(|ignore| Call::Delete { ignore })
}

fn claim() -> impl Strategy<Value = Call> {
    on_missing().prop_map(|on_missing| Call::Claim { on_missing })
}

fn context() -> impl Strategy<Value = Call> {
    weighted(0.8, 0..5_i64).prop_map(|max_rows| Call::Context { max_rows })
}

fn page() -> impl Strategy<Value = Page> {
    (weighted(0.4, position()), weighted(0.4, position()), weighted(0.5, 0..6_i64), any::<bool>())
        .prop_map(|(after, before, max_rows, newest_first)| Page { after, before, max_rows, newest_first })
}

fn history() -> impl Strategy<Value = Call> {
    (page(), few(&KINDS, 0.3), few(&TAGS, 0.3), few(&ITEM_IDS, 0.3))
        .prop_map(|(page, kinds, tags, item_ids)| Call::History { page, kinds, tags, item_ids })
}
