//! What the readers show, of the engine by SQL and of the model, as rows of text.

use super::contract::Model;
use super::log::{Entry, Live, Session};
use super::step::{Document, NAMES, Number, Page};

/// A row as the server sends it in the simple protocol.
pub type Row = Vec<Option<String>>;

pub trait Cell {
    fn cell(self) -> Option<String>;
}

impl Cell for &str {
    fn cell(self) -> Option<String> {
        Some(self.to_owned())
    }
}

impl Cell for String {
    fn cell(self) -> Option<String> {
        Some(self)
    }
}

impl Cell for i64 {
    fn cell(self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Cell for usize {
    fn cell(self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Cell for bool {
    fn cell(self) -> Option<String> {
        Some(if self { "t" } else { "f" }.to_owned())
    }
}

impl<T: Cell> Cell for Option<T> {
    fn cell(self) -> Option<String> {
        self.and_then(Cell::cell)
    }
}

macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($crate::model::compare::Cell::cell($value)),*] };
}
pub(super) use row;

pub const ITEM: &str =
    "position, op, kind, item_id, tag, author, payload::text, attrs::text, revised_at_position, open, delta_text";
pub const ENTRY: &str = "position, op, target, kind, item_id, tag, author,
    case when op in ('trim', 'erase') then null else payload::text end, attrs::text";
pub const SESSION: &str =
    "session_id, agent_id, owner, title, status, metadata::text, state::text, revision, next_position,
    input_tokens, origin, parent_session_id, branched_from, fork_position, lease_expires_at > clock_timestamp(),
    expires_at is not null, closed_at is not null";

/// A function that shows a session, or the view.
pub struct Reader {
    pub function: &'static str,
    columns: &'static str,
    rows: fn(&Model, &Session) -> Vec<Row>,
}

pub const READERS: [Reader; 8] = [
    Reader { function: "session_get", columns: SESSION, rows: |model, session| vec![model.session_row_of(session)] },
    Reader {
        function: "session_history",
        columns: ITEM,
        rows: |model, session| model.item_rows(session, &session.history()),
    },
    Reader { function: "session_context", columns: ITEM, rows: |model, session| model.context_rows(session, None) },
    Reader {
        function: "session_log",
        columns: ENTRY,
        rows: |model, session| session.log.iter().map(|entry| model.entry_row(entry)).collect(),
    },
    Reader { function: "live_item", columns: ITEM, rows: Model::own_items },
    Reader { function: "session_stats", columns: "kind, items, bytes", rows: Model::statistics },
    Reader { function: "session_lineage", columns: "depth, session_id, agent_id, fork_position", rows: Model::lineage },
    Reader {
        function: "session_verify",
        columns: "entries, redacted, ok, first_bad_position, reason",
        rows: Model::verdict,
    },
];

impl Reader {
    /// What it shows of all sessions that there may be, each row with the number of its session's name.
    pub fn sql(&self) -> String {
        let names: Vec<String> =
            NAMES.iter().enumerate().map(|(n, name)| format!("({n}, '{}', '{}')", name.agent, name.id)).collect();
        let (columns, names) = (self.columns, names.join(", "));
        let shown = match self.function {
            "live_item" => "lateral (select l.*, l.position as ordinality from agent_sessions.live_item l
                               where l.session_id = name.id and l.agent_id = name.agent) shown"
                .to_owned(),
            function => {
                format!("agent_sessions.{function}(session_id => name.id, agent_id => name.agent) with ordinality")
            }
        };
        let order = if self.function == "session_stats" { "kind" } else { "ordinality" };
        format!(
            "select name.number, {columns} from (values {names}) as name (number, agent, id), {shown}
             order by name.number, {order}"
        )
    }

    /// The same of the model.
    pub fn shown(&self, model: &Model) -> Vec<Row> {
        let mut shown = Vec::new();
        for (number, name) in NAMES.iter().enumerate() {
            let Some(session) = model.find(*name) else { continue };
            for row in (self.rows)(model, &model.sessions[session]) {
                shown.push(row![number].into_iter().chain(row).collect());
            }
        }
        shown
    }
}

impl Model {
    pub fn item_row(&self, session: &Session, live: &Live) -> Row {
        let Live { item, content } = live;
        row![
            item.position,
            item.op.word(),
            item.kind,
            item.item_id,
            item.tag,
            item.author,
            self.payload(content),
            self.attrs(content),
            live.is_revised().then_some(content.position),
            live.is_open(),
            session.delta_text(live),
        ]
    }

    pub fn item_rows(&self, session: &Session, items: &[Live]) -> Vec<Row> {
        items.iter().map(|live| self.item_row(session, live)).collect()
    }

    /// What the view shows: what the session's own entries say of its own items.
    fn own_items(&self, session: &Session) -> Vec<Row> {
        let is_own = |entry: &&Entry| self.find(session.name) == Some(entry.holder);
        let own = Session { log: session.log.iter().filter(is_own).cloned().collect(), ..session.clone() };
        self.item_rows(&own, &own.history())
    }

    /// A page of the history, of those items whose kind, tag and item_id are among these.
    pub fn history_rows(&self, session: &Session, page: &Page, among: [&Option<Vec<&str>>; 3]) -> Vec<Row> {
        let mut items = session.history();
        items.retain(|live| {
            let words = [live.item.kind, live.item.tag, live.item.item_id];
            let mut filters = among.into_iter().zip(words);
            filters.all(|(list, word)| list.as_ref().is_none_or(|list| word.is_some_and(|word| list.contains(&word))))
        });
        self.item_rows(session, &page.of(items, |live| live.item.position))
    }

    pub fn log_rows(&self, session: &Session, page: &Page) -> Vec<Row> {
        let entries = page.of(session.log.iter().collect(), |entry| entry.position);
        entries.into_iter().map(|entry| self.entry_row(entry)).collect()
    }

    /// The summary, and the newest so many of the items.
    pub fn context_rows(&self, session: &Session, max_rows: Option<i64>) -> Vec<Row> {
        let (summary, mut items) = session.context();
        let left_out = items.len().saturating_sub(max_rows.map_or(usize::MAX, |rows| rows as usize));
        items.drain(..left_out);
        let shown: Vec<Live> = summary.into_iter().chain(items).collect();
        self.item_rows(session, &shown)
    }

    pub fn entry_row(&self, entry: &Entry) -> Row {
        row![
            entry.position,
            entry.op.word(),
            entry.target,
            entry.kind,
            entry.item_id,
            entry.tag,
            entry.author,
            self.payload(entry),
            self.attrs(entry),
        ]
    }

    pub fn session_row(&self, session: usize) -> Row {
        self.session_row_of(&self.sessions[session])
    }

    fn session_row_of(&self, session: &Session) -> Row {
        let id_of = |other: Option<usize>| {
            other.map(|other| &self.sessions[other]).filter(|other| !other.deleted).map(|other| other.name.id)
        };
        row![
            session.name.id,
            session.name.agent,
            session.owner,
            session.title.as_deref(),
            session.status,
            session.metadata.as_ref().map(Document::jsonb),
            session.state.as_ref().map(Document::json),
            session.revision,
            session.next,
            session.input_tokens,
            session.origin,
            id_of(session.parent),
            id_of(session.source),
            session.fork,
            session.lease.is_some().then_some(true),
            session.expired.is_some(),
            session.status == Some("closed"),
        ]
    }

    fn statistics(&self, session: &Session) -> Vec<Row> {
        let items = session.history();
        let mut kinds: Vec<&str> = items.iter().filter_map(|live| live.item.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let counted = kinds.into_iter().map(|kind| {
            let of_kind = items.iter().filter(|live| live.item.kind == Some(kind));
            let payloads = of_kind.clone().filter_map(|live| self.payload(live.content));
            row![kind, of_kind.count(), payloads.map(str::len).sum::<usize>()]
        });
        counted.collect()
    }

    /// A deleted session is passed over; one that no branch keeps has taken what lies beyond along.
    fn lineage(&self, session: &Session) -> Vec<Row> {
        let mut rows = Vec::new();
        let (mut depth, mut next) = (0_usize, Some(session));
        while let Some(session) = next {
            if !session.deleted {
                rows.push(row![depth, session.name.id, session.name.agent, session.fork]);
            }
            depth += 1;
            next = session.source.filter(|source| !self.is_gone(*source)).map(|source| &self.sessions[source]);
        }
        rows
    }

    fn verdict(&self, session: &Session) -> Vec<Row> {
        let redacted = session.log.iter().filter(|entry| self.is_erased(entry)).count();
        vec![row![session.log.len(), redacted, true, None::<i64>, None::<&str>]]
    }
}

impl Page {
    /// The rows that this page has of those in the order of the log.
    fn of<T>(&self, mut rows: Vec<T>, position: impl Fn(&T) -> i64) -> Vec<T> {
        let value = |number: Option<Number>, otherwise| number.map_or(otherwise, Number::value);
        let inside = value(self.after, i64::MIN) + 1..value(self.before, i64::MAX);
        rows.retain(|row| inside.contains(&position(row)));
        if self.newest_first {
            rows.reverse();
        }
        rows.truncate(self.max_rows.map_or(usize::MAX, |rows| rows as usize));
        rows
    }
}
