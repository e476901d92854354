//! Random texts: a known case, changed in some places.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::{Index, select};

/// A change of a text at a place.
#[derive(Clone, Debug)]
pub enum Edit {
    Insert(Index, char),
    Replace(Index, char),
    Delete(Index, usize),
    /// Puts a part of the text itself, or of another case, somewhere.
    Splice(Index, Index, usize, &'static str),
    Cut(Index),
}

/// What structure is made of, and what breaks it.
const CHARACTERS: &[char] = &[
    '"',
    '\\',
    '{',
    '}',
    '[',
    ']',
    ':',
    ',',
    'u',
    '0',
    '9',
    'd',
    'e',
    'E',
    '+',
    '-',
    '.',
    ' ',
    '\n',
    '\r',
    '\t',
    '\0',
    '\u{1f}',
    '\u{7f}',
    '\u{a0}',
    '\u{d7ff}',
    '\u{e000}',
    '\u{fffd}',
    '\u{1F680}',
    'n',
    't',
    'f',
    '%',
    '/',
    'a',
    'Z',
    's',
];

fn character() -> impl Strategy<Value = char> {
    prop_oneof![4 => select(CHARACTERS), 1 => any::<char>()]
}

fn edit(cases: &'static [&'static str]) -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => (any::<Index>(), character()).prop_map(|(at, new)| Edit::Insert(at, new)),
        3 => (any::<Index>(), character()).prop_map(|(at, new)| Edit::Replace(at, new)),
        2 => (any::<Index>(), 1..4_usize).prop_map(|(at, length)| Edit::Delete(at, length)),
        2 => (any::<Index>(), any::<Index>(), 1..20_usize, select(cases))
            .prop_map(|(at, from, length, case)| Edit::Splice(at, from, length, case)),
        1 => any::<Index>().prop_map(Edit::Cut),
    ]
}

fn apply(text: &str, edits: Vec<Edit>) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for edit in edits {
        let place = |at: Index, length: usize| at.index(length + 1).min(length);
        let length = text.len();
        match edit {
            Edit::Insert(at, new) => text.insert(place(at, length), new),
            Edit::Replace(at, new) if length > 0 => text[at.index(length)] = new,
            Edit::Delete(at, count) if length > 0 => {
                let from = at.index(length);
                drop(text.drain(from..(from + count).min(length)));
            }
            Edit::Splice(at, from, count, case) => {
                let case: Vec<char> = case.chars().collect();
                let from = place(from, case.len());
                let part = case[from..(from + count).min(case.len())].to_vec();
                let at = place(at, length);
                drop(text.splice(at..at, part));
            }
            Edit::Cut(at) => text.truncate(place(at, length)),
            Edit::Replace(..) | Edit::Delete(..) => {}
        }
    }
    text.into_iter().collect()
}

/// One of the cases, as it is or changed.
pub fn of(cases: &'static [&'static str]) -> impl Strategy<Value = String> {
    (select(cases), vec(edit(cases), 0..6)).prop_map(|(case, edits)| apply(case, edits))
}

/// The same, of cases that are made at random.
pub fn changed(cases: impl Strategy<Value = String>, parts: &'static [&'static str]) -> impl Strategy<Value = String> {
    (cases, vec(edit(parts), 1..4)).prop_map(|(case, edits)| apply(&case, edits))
}

/// JSON, nested and in forms of its own.
pub fn json() -> impl Strategy<Value = String> {
    let leaf = select(super::cases::JSON).prop_map(str::to_owned);
    let key = prop_oneof![
        select(&["a", "b", "\\u0061", "payload", "", "\\ud83d", "\u{1F680}"][..]).prop_map(str::to_owned),
        "[a-c]{1,2}"
    ];
    let space = select(&["", " ", "\n\t", "\r "][..]);
    leaf.prop_recursive(5, 40, 5, move |inner| {
        let member = (key.clone(), space.clone(), inner.clone())
            .prop_map(|(key, space, value)| format!("{space}\"{key}\"{space}:{space}{value}{space}"));
        prop_oneof![
            vec(inner, 0..5).prop_map(|values| format!("[{}]", values.join(","))),
            vec(member, 0..5).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    })
}

/// A name that is allowed, or nothing.
pub fn label() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), "[a-z \"'/\\\\\u{1F680}]{1,8}".prop_map(Some)]
}
