//! A step as SQL, as the engine gets it and as a person may paste it into psql.

use super::compare::{ENTRY, ITEM, SESSION};
use super::step::{Call, Document, Given, Item, Lease, Name, Number, OnConflict, OnMissing, Page, Step, Which};

type Argument = (&'static str, Option<String>);

fn quoted(text: impl AsRef<str>) -> Option<String> {
    Some(format!("'{}'", text.as_ref().replace('\'', "''")))
}

fn text(text: Option<impl AsRef<str>>) -> Option<String> {
    text.and_then(quoted)
}

fn number(number: &Option<Number>) -> Option<String> {
    number.map(|number| number.value().to_string())
}

fn yes(given: bool) -> Option<String> {
    given.then(|| "true".to_owned())
}

fn list<T: ToString>(items: &Option<Vec<T>>) -> Option<String> {
    let items: Vec<String> = items.as_ref()?.iter().map(T::to_string).collect();
    quoted(format!("{{{}}}", items.join(",")))
}

fn positions(targets: &Option<Vec<Number>>) -> Option<String> {
    list(&targets.as_ref().map(|targets| targets.iter().map(|target| target.value()).collect()))
}

fn on_missing(word: OnMissing) -> Option<String> {
    quoted(match word {
        OnMissing::Error => return None,
        OnMissing::Create => "create",
        OnMissing::Ignore => "ignore",
    })
}

fn ignore_missing(ignore: bool) -> Option<String> {
    on_missing(if ignore { OnMissing::Ignore } else { OnMissing::Error })
}

fn word(on_conflict: OnConflict) -> &'static str {
    match on_conflict {
        OnConflict::Error => "error",
        OnConflict::Keep => "keep",
        OnConflict::Replace => "replace",
    }
}

fn which(which: &Which) -> [Argument; 2] {
    let (target, item_id) = match which {
        Which::At(target) => (Some(*target), None),
        Which::WithId(item_id) => (None, Some(*item_id)),
    };
    [("target", number(&target)), ("item_id", text(item_id))]
}

fn page(page: &Page) -> Vec<Argument> {
    vec![
        ("after", number(&page.after)),
        ("before", number(&page.before)),
        ("max_rows", page.max_rows.map(|rows| rows.to_string())),
        ("newest_first", yes(page.newest_first)),
    ]
}

fn given(given: &Given) -> Vec<Argument> {
    vec![
        ("title", text(given.title)),
        ("status", text(given.status)),
        ("owner", text(given.owner)),
        ("origin", text(given.origin)),
        ("metadata", text(given.metadata.as_ref().map(Document::jsonb))),
        ("state", text(given.state.as_ref().map(Document::json))),
        ("input_tokens", given.input_tokens.map(|tokens| tokens.to_string())),
        ("expires_at", given.expired.then(|| "now() - interval '1 day'".to_owned())),
    ]
}

/// A batch: its elements' payloads are embedded as they are.
fn elements(items: &[Item]) -> Option<String> {
    let element = |item: &Item| {
        let string = |text: &str| format!("\"{text}\"");
        let members = [
            ("payload", Some(item.payload.to_owned())),
            ("kind", item.kind.map(string)),
            ("item_id", item.item_id.map(string)),
            ("tag", item.tag.map(string)),
            ("author", item.author.map(string)),
            ("attrs", item.attrs.map(str::to_owned)),
            ("kept_from", number(&item.kept_from)),
            ("on_conflict", item.on_conflict.map(|on_conflict| string(word(on_conflict)))),
        ];
        let members: Vec<String> =
            members.into_iter().filter_map(|(key, value)| Some(format!("\"{key}\": {}", value?))).collect();
        format!("{{{}}}", members.join(", "))
    };
    let elements: Vec<String> = items.iter().map(element).collect();
    quoted(format!("[{}]", elements.join(", ")))
}

/// The function that a step calls, the columns to show if it returns rows, and its arguments besides session and lease.
fn function(call: &Call) -> (&'static str, Option<&'static str>, Vec<Argument>) {
    match call {
        Call::Create { given: head, parent, items, keep } => {
            let mut arguments = given(head);
            arguments.extend([
                ("parent_session_id", text(parent.map(|parent| parent.name().id))),
                ("parent_agent_id", text(parent.map(|parent| parent.name().agent))),
                ("items", items.as_deref().and_then(elements)),
                ("on_conflict", keep.then(|| quoted("keep")).flatten()),
            ]);
            ("session_create", Some(SESSION), arguments)
        }
        Call::Set { given: head, merge, expected, on_missing: missing } => {
            let mut arguments = given(head);
            arguments.extend([
                ("merge", yes(*merge)),
                ("expected_revision", number(expected)),
                ("on_missing", on_missing(*missing)),
            ]);
            ("session_set", None, arguments)
        }
        Call::Append { item, open, expected, on_missing: missing } => {
            let arguments = vec![
                ("payload", quoted(item.payload)),
                ("kind", text(item.kind)),
                ("item_id", text(item.item_id)),
                ("tag", text(item.tag)),
                ("author", text(item.author)),
                ("attrs", text(item.attrs)),
                ("kept_from", number(&item.kept_from)),
                ("open", yes(*open)),
                ("expected_position", number(expected)),
                ("on_conflict", text(item.on_conflict.map(word))),
                ("on_missing", on_missing(*missing)),
            ];
            ("session_append", None, arguments)
        }
        Call::Batch { items, expected, on_conflict, on_missing: missing } => {
            let arguments = vec![
                ("items", elements(items)),
                ("expected_position", number(expected)),
                ("on_conflict", quoted(word(*on_conflict))),
                ("on_missing", on_missing(*missing)),
            ];
            ("session_append_batch", Some("ordinal, position, item_id, outcome"), arguments)
        }
        Call::Revise { which: item, payload, kind, attrs, expected } => {
            let mut arguments = which(item).to_vec();
            arguments.extend([
                ("payload", quoted(payload)),
                ("kind", text(*kind)),
                ("attrs", text(*attrs)),
                ("expected_position", number(expected)),
            ]);
            ("session_revise", None, arguments)
        }
        Call::Retract { targets, item_ids, from_target, expected, ignore } => {
            let arguments = vec![
                ("targets", positions(targets)),
                ("item_ids", list(item_ids)),
                ("from_target", number(from_target)),
                ("expected_position", number(expected)),
                ("on_missing", ignore_missing(*ignore)),
            ];
            ("session_retract", None, arguments)
        }
        Call::Pop => ("session_pop", Some(ITEM), Vec::new()),
        Call::Delta { target, chunk_no, chunk } => {
            let arguments = vec![
                ("target", number(&Some(*target))),
                ("chunk_no", number(&Some(*chunk_no))),
                ("chunk", quoted(chunk)),
            ];
            ("session_delta", None, arguments)
        }
        Call::Branch { at_target, at_item_id, at_tag, to, inherit, seed, title } => {
            let arguments = vec![
                ("at_target", number(at_target)),
                ("at_item_id", text(*at_item_id)),
                ("at_tag", text(*at_tag)),
                ("new_session_id", quoted(to.name().id)),
                ("new_agent_id", quoted(to.name().agent)),
                ("inherit", (!inherit).then(|| "false".to_owned())),
                ("seed", text(*seed)),
                ("title", text(*title)),
            ];
            ("session_branch", Some(SESSION), arguments)
        }
        Call::Flatten => ("session_flatten", None, Vec::new()),
        Call::Trim { keep_from, force } => {
            ("session_trim", None, vec![("keep_from", number(&Some(*keep_from))), ("force", yes(*force))])
        }
        Call::Erase { target, item_id } => {
            ("session_erase", None, vec![("target", number(target)), ("item_id", text(*item_id))])
        }
        Call::Delete { ignore } => ("session_delete", None, vec![("on_missing", ignore_missing(*ignore))]),
        Call::Claim { on_missing: missing } => {
            // Its own default is to create.
            let missing = if *missing == OnMissing::Error { quoted("error") } else { on_missing(*missing) };
            ("session_claim", Some("lease, fence"), vec![("ttl", quoted("1 hour")), ("on_missing", missing)])
        }
        Call::Extend => ("session_extend", Some("lease, fence"), vec![("ttl", quoted("2 hours"))]),
        Call::Release => ("session_release", None, Vec::new()),
        Call::Break => ("session_break_lease", None, Vec::new()),
        Call::Expire => ("session_expire", None, Vec::new()),
        Call::History { page: part, kinds, tags, item_ids } => {
            let mut arguments = page(part);
            arguments.extend([("kinds", list(kinds)), ("tags", list(tags)), ("item_ids", list(item_ids))]);
            ("session_history", Some(ITEM), arguments)
        }
        Call::Context { max_rows } => {
            ("session_context", Some(ITEM), vec![("max_rows", max_rows.map(|rows| rows.to_string()))])
        }
        Call::Log { page: part } => ("session_log", Some(ENTRY), page(part)),
    }
}

fn function_call(step: &Step, lease: Option<String>) -> String {
    let session = step.session.name();
    let (name, columns, arguments) = function(&step.call);
    let mut all: Vec<Argument> = Vec::new();
    if !matches!(step.call, Call::Expire) {
        all.push(("session_id", quoted(session.id)));
    }
    all.extend(arguments);
    if !matches!(step.call, Call::Expire) && !session.agent.is_empty() {
        all.push(("agent_id", quoted(session.agent)));
    }
    if matches!(step.call, Call::Extend | Call::Release) {
        all.push(("lease", Some(lease.unwrap_or("null".to_owned()))));
    } else if step.call.takes_lease() {
        all.push(("lease", lease));
    }
    let all: Vec<String> = all.into_iter().filter_map(|(name, value)| Some(format!("{name} => {}", value?))).collect();
    match columns {
        Some(columns) => format!("select {columns} from agent_sessions.{name}({})", all.join(", ")),
        None => format!("select agent_sessions.{name}({})", all.join(", ")),
    }
}

/// An INSERT of one row beside the session's key; a column that is not given is left out.
fn insert(into: &str, columns: Vec<Argument>, session: Name) -> String {
    let (columns, values): (Vec<_>, Vec<_>) =
        columns.into_iter().filter_map(|(column, value)| Some((column, value?))).unzip();
    format!(
        "insert into agent_sessions.{into} (sid, {}) select sid, {} from agent_sessions.session \
         where session_id = '{}' and agent_id = '{}'",
        columns.join(", "),
        values.join(", "),
        session.id,
        session.agent
    )
}

fn raw(step: &Step) -> String {
    let session = step.session.name();
    let item = |columns| insert("session_item", columns, session);
    match &step.call {
        Call::Append { item: given, open, expected, .. } => item(vec![
            ("position", number(expected)),
            ("op", open.then(|| quoted("open")).flatten()),
            ("kind", text(given.kind)),
            ("item_id", text(given.item_id)),
            ("tag", text(given.tag)),
            ("author", text(given.author)),
            ("target", number(&given.kept_from)),
            ("payload", quoted(given.payload)),
            ("attrs", text(given.attrs)),
        ]),
        Call::Revise { which: Which::At(target), payload, attrs, expected, .. } => item(vec![
            ("position", number(expected)),
            ("op", quoted("revise")),
            ("target", number(&Some(*target))),
            ("payload", quoted(payload)),
            ("attrs", text(*attrs)),
        ]),
        Call::Retract { targets, from_target, expected, .. } => {
            let op = if from_target.is_some() { "retract_from" } else { "retract" };
            let target = from_target.or(targets.as_ref().map(|targets| targets[0]));
            item(vec![("position", number(expected)), ("op", quoted(op)), ("target", number(&target))])
        }
        Call::Delta { target, chunk_no, chunk } => insert(
            "session_delta",
            vec![("target", number(&Some(*target))), ("chunk_no", number(&Some(*chunk_no))), ("chunk", quoted(chunk))],
            session,
        ),
        Call::Delete { .. } => format!(
            "delete from agent_sessions.session where session_id = '{}' and agent_id = '{}'",
            session.id, session.agent
        ),
        call => panic!("{call:?} has no raw form"),
    }
}

/// A looked up step as statements. `lease` says how a lease is written, by its number.
pub fn statements(step: &Step, lease: &dyn Fn(usize) -> String) -> Vec<String> {
    let argument = match &step.lease {
        Lease::Argument(number) => Some(lease(*number)),
        _ => None,
    };
    let statement = if step.raw { raw(step) } else { function_call(step, argument) };
    match &step.lease {
        Lease::Setting(numbers) if !numbers.is_empty() => {
            let leases: Vec<String> = numbers.iter().map(|number| lease(*number)).collect();
            let all = leases.join(" || ',' || ");
            vec![
                format!("select set_config('agent_sessions.lease', {all}, false)"),
                statement,
                "reset agent_sessions.lease".to_owned(),
            ]
        }
        _ => vec![statement],
    }
}
