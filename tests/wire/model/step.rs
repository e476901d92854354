//! What may be done to the sessions: every call with what it may bring.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub agent: &'static str,
    pub id: &'static str,
}

const fn name(agent: &'static str, id: &'static str) -> Name {
    Name { agent, id }
}

pub const NAMES: [Name; 7] =
    [name("", "a"), name("", "b"), name("", "c"), name("", "d"), name("", "e"), name("x", "a"), name("x", "f")];

/// A number that is looked up in the model when its step runs, so that what is left of a plan still means the same.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// The position of a live item, counted from the newest.
    Live(usize),
    /// The position of an entry of whatever kind, counted from the newest.
    Entry(usize),
    /// The position of the newest item that is open.
    Open,
    /// So many more than the next position.
    Next(i64),
    /// So many more than the revision.
    Revision(i64),
    /// So many more than the chunks of the newest open item.
    Chunks(i64),
    /// Looked up.
    Is(i64),
}

impl Number {
    pub fn value(self) -> i64 {
        match self {
            Number::Is(value) => value,
            other => panic!("{other:?} was not looked up"),
        }
    }
}

/// A session, looked up likewise.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// One that exists, if any does.
    Existing(usize),
    /// One of that kind, else one that exists.
    Such(Kind, usize),
    /// A name that no session has, if there is one.
    Free(usize),
    /// Looked up.
    Is(Name),
}

/// Sessions that some calls are about.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Leased,
    /// With an open item.
    Streaming,
    Branch,
    /// With a branch.
    Source,
}

impl Who {
    pub fn name(self) -> Name {
        match self {
            Who::Is(name) => name,
            other => panic!("{other:?} was not looked up"),
        }
    }
}

/// The lease that a call brings.
#[derive(Clone, Debug)]
pub enum Lease {
    Nothing,
    /// The live one, if there is one, as an argument or in the setting.
    Live {
        by_setting: bool,
    },
    /// One of this session's name that was released, broken or deleted, if there is one.
    Lost {
        which: usize,
        by_setting: bool,
    },
    /// Every live one of all sessions, in the setting.
    All,
    /// Looked up: numbers of leases.
    Argument(usize),
    Setting(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnConflict {
    Error,
    Keep,
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnMissing {
    Error,
    Create,
    Ignore,
}

/// What is appended: the arguments of session_append, or an element of a batch.
#[derive(Clone, Debug, Default)]
pub struct Item {
    pub payload: &'static str,
    pub kind: Option<&'static str>,
    pub item_id: Option<&'static str>,
    pub tag: Option<&'static str>,
    pub author: Option<&'static str>,
    pub attrs: Option<&'static str>,
    pub kept_from: Option<Number>,
    pub on_conflict: Option<OnConflict>,
}

#[derive(Clone, Copy, Debug)]
pub enum Which {
    At(Number),
    WithId(&'static str),
}

/// A document of one-letter keys, or one that is no object.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    Object(Vec<(&'static str, u8)>),
    Number(u8),
}

impl Document {
    /// Its text as json.
    pub fn json(&self) -> String {
        self.text(",", ":")
    }

    /// Its text as jsonb.
    pub fn jsonb(&self) -> String {
        self.clone().sorted().text(", ", ": ")
    }

    /// In the order that jsonb has.
    pub fn sorted(mut self) -> Document {
        if let Document::Object(members) = &mut self {
            members.sort_unstable();
        }
        self
    }

    fn text(&self, comma: &str, colon: &str) -> String {
        match self {
            Document::Number(number) => number.to_string(),
            Document::Object(members) => {
                let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\"{colon}{value}")).collect();
                format!("{{{}}}", members.join(comma))
            }
        }
    }
}

/// What session_create and session_set may give.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub title: Option<&'static str>,
    pub status: Option<&'static str>,
    pub owner: Option<&'static str>,
    pub origin: Option<&'static str>,
    pub metadata: Option<Document>,
    pub state: Option<Document>,
    pub input_tokens: Option<i64>,
    /// expires_at, in the past.
    pub expired: bool,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub after: Option<Number>,
    pub before: Option<Number>,
    pub max_rows: Option<i64>,
    pub newest_first: bool,
}

#[derive(Clone, Debug)]
pub enum Call {
    Create {
        given: Given,
        parent: Option<Who>,
        items: Option<Vec<Item>>,
        keep: bool,
    },
    Set {
        given: Given,
        merge: bool,
        expected: Option<Number>,
        on_missing: OnMissing,
    },
    Append {
        item: Item,
        open: bool,
        expected: Option<Number>,
        on_missing: OnMissing,
    },
    Batch {
        items: Vec<Item>,
        expected: Option<Number>,
        on_conflict: OnConflict,
        on_missing: OnMissing,
    },
    Revise {
        which: Which,
        payload: &'static str,
        kind: Option<&'static str>,
        attrs: Option<&'static str>,
        expected: Option<Number>,
    },
    Retract {
        targets: Option<Vec<Number>>,
        item_ids: Option<Vec<&'static str>>,
        from_target: Option<Number>,
        expected: Option<Number>,
        ignore: bool,
    },
    Pop,
    Delta {
        target: Number,
        chunk_no: Number,
        chunk: &'static str,
    },
    Branch {
        at_target: Option<Number>,
        at_item_id: Option<&'static str>,
        at_tag: Option<&'static str>,
        to: Who,
        inherit: bool,
        seed: Option<&'static str>,
        title: Option<&'static str>,
    },
    Flatten,
    Trim {
        keep_from: Number,
        force: bool,
    },
    Erase {
        target: Option<Number>,
        item_id: Option<&'static str>,
    },
    Delete {
        ignore: bool,
    },
    Claim {
        on_missing: OnMissing,
    },
    Extend,
    Release,
    Break,
    Expire,
    History {
        page: Page,
        kinds: Option<Vec<&'static str>>,
        tags: Option<Vec<&'static str>>,
        item_ids: Option<Vec<&'static str>>,
    },
    Context {
        max_rows: Option<i64>,
    },
    Log {
        page: Page,
    },
}

#[derive(Clone, Debug)]
pub struct Step {
    pub session: Who,
    pub lease: Lease,
    /// As a plain INSERT or DELETE; leases come in the setting.
    pub raw: bool,
    pub call: Call,
}

impl Call {
    /// Whether the function has an argument for a lease.
    pub fn takes_lease(&self) -> bool {
        !matches!(
            self,
            Call::Create { .. }
                | Call::Claim { .. }
                | Call::Break
                | Call::Expire
                | Call::History { .. }
                | Call::Context { .. }
                | Call::Log { .. }
        )
    }

    /// What is refused before anything is looked at: arguments that exclude each other, or none of them; a document to merge
    /// that is no object; numbers below 0, but a page may begin and end anywhere.
    pub fn is_malformed(&self) -> bool {
        let has_wrong_arguments = match self {
            Call::Set { given, merge: true, .. } => [&given.state, &given.metadata]
                .into_iter()
                .flatten()
                .any(|document| matches!(document, Document::Number(_))),
            Call::Retract { targets, item_ids, from_target, .. } => {
                from_target.is_some() == (targets.is_some() || item_ids.is_some())
            }
            Call::Branch { at_target, at_item_id, at_tag, .. } => {
                [at_target.is_some(), at_item_id.is_some(), at_tag.is_some()].into_iter().filter(|given| *given).count()
                    > 1
            }
            Call::Erase { target, item_id } => target.is_some() == item_id.is_some(),
            Call::History { .. } | Call::Log { .. } => return false,
            _ => false,
        };
        has_wrong_arguments || self.clone().numbers().iter().any(|number| number.value() < 0)
    }

    /// The numbers of the call that have to be looked up.
    pub fn numbers(&mut self) -> Vec<&mut Number> {
        match self {
            Call::Create { items: Some(items), .. } => {
                items.iter_mut().filter_map(|item| item.kept_from.as_mut()).collect()
            }
            Call::Set { expected, .. } => expected.iter_mut().collect(),
            Call::Append { item, expected, .. } => item.kept_from.iter_mut().chain(expected).collect(),
            Call::Batch { items, expected, .. } => {
                items.iter_mut().filter_map(|item| item.kept_from.as_mut()).chain(expected).collect()
            }
            Call::Revise { which: Which::At(target), expected, .. } => [target].into_iter().chain(expected).collect(),
            Call::Revise { expected, .. } => expected.iter_mut().collect(),
            Call::Retract { targets, from_target, expected, .. } => {
                targets.iter_mut().flatten().chain(from_target).chain(expected).collect()
            }
            Call::Delta { target, chunk_no, .. } => vec![target, chunk_no],
            Call::Branch { at_target, .. } => at_target.iter_mut().collect(),
            Call::Trim { keep_from, .. } => vec![keep_from],
            Call::Erase { target, .. } => target.iter_mut().collect(),
            Call::History { page, .. } | Call::Log { page } => page.after.iter_mut().chain(&mut page.before).collect(),
            _ => Vec::new(),
        }
    }
}

impl Step {
    /// The sessions of the step that have to be looked up.
    pub fn sessions(&mut self) -> Vec<&mut Who> {
        let other = match &mut self.call {
            Call::Create { parent, .. } => parent.as_mut(),
            Call::Branch { to, .. } => Some(to),
            _ => None,
        };
        [&mut self.session].into_iter().chain(other).collect()
    }

    /// What the step is called in the tally.
    pub fn what(&self) -> &'static str {
        match (self.raw, &self.call) {
            (false, Call::Create { .. }) => "session_create",
            (false, Call::Set { .. }) => "session_set",
            (false, Call::Append { .. }) => "session_append",
            (false, Call::Batch { .. }) => "session_append_batch",
            (false, Call::Revise { .. }) => "session_revise",
            (false, Call::Retract { .. }) => "session_retract",
            (false, Call::Pop) => "session_pop",
            (false, Call::Delta { .. }) => "session_delta",
            (false, Call::Branch { .. }) => "session_branch",
            (false, Call::Flatten) => "session_flatten",
            (false, Call::Trim { .. }) => "session_trim",
            (false, Call::Erase { .. }) => "session_erase",
            (false, Call::Delete { .. }) => "session_delete",
            (false, Call::Claim { .. }) => "session_claim",
            (false, Call::Extend) => "session_extend",
            (false, Call::Release) => "session_release",
            (false, Call::Break) => "session_break_lease",
            (false, Call::Expire) => "session_expire",
            (false, Call::History { .. }) => "session_history",
            (false, Call::Context { .. }) => "session_context",
            (false, Call::Log { .. }) => "session_log",
            (true, Call::Append { .. }) => "insert append",
            (true, Call::Revise { .. }) => "insert revise",
            (true, Call::Retract { from_target: None, .. }) => "insert retract",
            (true, Call::Retract { .. }) => "insert retract_from",
            (true, Call::Delta { .. }) => "insert delta",
            (true, Call::Delete { .. }) => "delete",
            (true, call) => panic!("{call:?} has no raw form"),
        }
    }
}
