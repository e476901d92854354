//! Anchors: one root over the heads of all chains of a tenant, to be kept outside, and the check that the chains still hold them.

use agent_sessions_core::anchor::Head;
use agent_sessions_core::digest::{Digest, hex};
use agent_sessions_core::error::Error;
use agent_sessions_core::merkle::{self, Tree};
use pgrx::pg_sys::{Datum, INT4OID, INT8ARRAYOID, INT8OID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID};

use crate::audit::track;
use crate::identity;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi, seeing};
use crate::postgres::value::{Element, array, clock, text_datum};

static TAKE_TURNS: KeptPlan = KeptPlan::new(
    c"select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('agent_sessions.audit_anchor' \
        operator(pg_catalog.||) $1, 0))",
    &[TEXTOID],
);

static NEXT: KeptPlan = KeptPlan::new(
    c"select coalesce(pg_catalog.max(a.anchor_id), 0::pg_catalog.int8) operator(pg_catalog.+) 1 \
      from agent_sessions.audit_anchor a where a.tenant operator(pg_catalog.=) $1",
    &[TEXTOID],
);

static STREAM_HEADS: KeptPlan = KeptPlan::new(
    c"select c.stream, head.seq, head.hash from agent_sessions.audit_chain c \
      cross join lateral ( \
        select e.seq, e.hash from agent_sessions.audit_event e \
        where e.tenant operator(pg_catalog.=) c.tenant and e.stream operator(pg_catalog.=) c.stream \
        order by e.seq desc limit 1) head \
      where c.tenant operator(pg_catalog.=) $1 order by c.stream",
    &[TEXTOID],
);

static SESSION_HEADS: KeptPlan = KeptPlan::new(
    c"select s.agent_id, s.session_id, head.position, head.digest from agent_sessions.session s \
      cross join lateral ( \
        select i.position, i.digest from agent_sessions.session_item i \
        where i.sid operator(pg_catalog.=) s.sid order by i.position desc limit 1) head \
      where s.tenant operator(pg_catalog.=) $1 and s.deleted_at is null order by s.session_id, s.agent_id",
    &[TEXTOID],
);

static RECORD: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_anchor (tenant, anchor_id, root, chains, at) values ($1, $2, $3, $4, $5)",
    &[TEXTOID, INT8OID, TEXTOID, INT4OID, TIMESTAMPTZOID],
);

static RECORD_LEAVES: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_anchor_leaf (tenant, anchor_id, ordinal, leaf, stream, seq) \
      select $1, $2, l.ordinal, l.leaf, l.stream, l.seq \
      from rows from (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6)) \
        as l (ordinal, leaf, stream, seq)",
    &[TEXTOID, INT8OID, INT8ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, INT8ARRAYOID],
);

static FIND: KeptPlan = KeptPlan::new(
    c"select a.anchor_id, a.root, coalesce(( \
        select l.seq from agent_sessions.audit_anchor_leaf l \
        where l.tenant operator(pg_catalog.=) a.tenant and l.anchor_id operator(pg_catalog.=) a.anchor_id \
          and l.stream operator(pg_catalog.=) $4), 0::pg_catalog.int8) from agent_sessions.audit_anchor a \
      where a.tenant operator(pg_catalog.=) $1 and ($2 is null or a.anchor_id operator(pg_catalog.=) $2) \
        and ($3 is null or a.root operator(pg_catalog.=) $3) order by a.anchor_id desc limit 1",
    &[TEXTOID, INT8OID, TEXTOID, TEXTOID],
);

static LEAVES: KeptPlan = KeptPlan::new(
    c"select l.leaf from agent_sessions.audit_anchor_leaf l \
      where l.tenant operator(pg_catalog.=) $1 and l.anchor_id operator(pg_catalog.=) $2 order by l.ordinal",
    &[TEXTOID, INT8OID],
);

static EVENT_AT: KeptPlan = KeptPlan::new(
    c"select e.hash from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 and e.seq operator(pg_catalog.=) $3 \
      union all \
      select c.base_hash from agent_sessions.audit_chain c \
      where c.tenant operator(pg_catalog.=) $1 and c.stream operator(pg_catalog.=) $2 and c.base_seq operator(pg_catalog.=) $3",
    &[TEXTOID, TEXTOID, INT8OID],
);

static IS_PRUNED: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_chain c \
      where c.tenant operator(pg_catalog.=) $1 and c.stream operator(pg_catalog.=) $2 and c.base_seq operator(pg_catalog.>) $3 \
        and exists (select from agent_sessions.audit_anchor_leaf l \
          where l.tenant operator(pg_catalog.=) c.tenant and l.stream operator(pg_catalog.=) c.stream \
            and l.seq operator(pg_catalog.>=) c.base_seq)",
    &[TEXTOID, TEXTOID, INT8OID],
);

static ENTRY_AT: KeptPlan = KeptPlan::new(
    c"select s.base_position, i.digest from agent_sessions.session s \
      left join agent_sessions.session_item i \
        on i.sid operator(pg_catalog.=) s.sid and i.position operator(pg_catalog.=) $4 \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null",
    &[TEXTOID, TEXTOID, TEXTOID, INT8OID],
);

const LEAVES_AT_ONCE: usize = 1_000;

/// An anchor that was recorded.
pub struct Anchor {
    pub tenant: String,
    pub id: i64,
    pub root: String,
    /// How far the engine's own trail was.
    trail_seq: i64,
}

impl Anchor {
    /// The newest of that id and root, as far as they are given.
    pub fn find(spi: &Spi, id: Option<i64>, root: Option<&str>) -> Result<Option<Anchor>, Error> {
        let tenant = identity::tenant()?;
        let wanted =
            [Some(text_datum(&tenant)), id.map(Datum::from), root.map(text_datum), Some(text_datum(track::TRAIL))];
        let found = FIND.run(spi, See::Caller, &wanted);
        Ok(found.first().and_then(|row| {
            Some(Anchor {
                id: row.int8(0)?,
                root: row.text(1)?.to_owned(),
                trail_seq: row.int8(2)?,
                tenant: tenant.clone(),
            })
        }))
    }

    /// Hands the texts of the leaves to `each`, in their order.
    pub fn leaves(&self, spi: &Spi, mut each: impl FnMut(&str)) {
        let anchor = [Some(text_datum(&self.tenant)), Some(Datum::from(self.id))];
        LEAVES.stream(spi, &anchor, |row| each(row.text(0).unwrap_or_default()));
    }
}

pub fn audit_anchor(call: &mut Call) -> Returns {
    let mut set = call.set();
    let tenant = identity::tenant()?;
    let spi = Spi::connect();
    // As the owner: an anchor covers what the caller's agent does not see, too.
    let _owner = AsOwner::switch();
    let name = [Some(text_datum(&tenant))];
    TAKE_TURNS.run(&spi, See::Now, &name);
    let next = NEXT.run(&spi, See::Latest, &name);
    let id = next.first().and_then(|row| row.int8(0)).unwrap_or(1);

    let mut recording = Recording { tenant: &tenant, id, tree: Tree::default(), count: 0, heads: Vec::new() };
    let at = clock();
    // What was committed while this waited for its turn belongs to it.
    seeing(See::Latest, || {
        STREAM_HEADS.stream(&spi, &name, |row| {
            let head = || {
                let (stream, seq, hash) = (row.text(0)?.to_owned(), row.int8(1)?, row.text(2)?.to_owned());
                Some(Head::Stream { tenant: tenant.clone(), stream, seq, hash })
            };
            recording.add(head());
        });
        SESSION_HEADS.stream(&spi, &name, |row| {
            let head = || {
                let (agent_id, session_id) = (row.text(0)?.to_owned(), row.text(1)?.to_owned());
                let (position, digest) = (row.int8(2)?, hex(row.bytes(3)?));
                Some(Head::Session { tenant: tenant.clone(), agent_id, session_id, position, digest })
            };
            recording.add(head());
        });
    });
    recording.flush();
    let anchor = [
        Some(Datum::from(id)),
        Some(text_datum(&hex(&recording.tree.root()))),
        Some(Datum::from(recording.count as i32)),
        Some(Datum::from(at)),
    ];
    RECORD.run(&spi, See::Now, &[&name[..], &anchor].concat());
    set.put(&anchor);
    Ok(None)
}

/// An anchor that is being made.
struct Recording<'a> {
    tenant: &'a str,
    id: i64,
    tree: Tree,
    /// How many leaves are written, and which are not yet.
    count: i64,
    heads: Vec<Head>,
}

impl Recording<'_> {
    fn add(&mut self, head: Option<Head>) {
        self.heads.extend(head);
        if self.heads.len() == LEAVES_AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let heads = std::mem::take(&mut self.heads);
        let ordinals: Vec<_> = (self.count..).take(heads.len()).map(|ordinal| Some(Datum::from(ordinal))).collect();
        let texts: Vec<String> = heads.iter().map(Head::text).collect();
        texts.iter().for_each(|text| self.tree.push(merkle::leaf(text.as_bytes())));
        self.count += heads.len() as i64;
        // A connection of its own, which frees what the leaves leave behind.
        let spi = Spi::connect();
        let stream = |head: &Head| match head {
            Head::Stream { stream, seq, .. } => (Some(text_datum(stream)), Some(Datum::from(*seq))),
            Head::Session { .. } => (None, None),
        };
        let (streams, seqs): (Vec<_>, Vec<_>) = heads.iter().map(stream).unzip();
        RECORD_LEAVES.run(
            &spi,
            See::Now,
            &[
                Some(text_datum(self.tenant)),
                Some(Datum::from(self.id)),
                Some(array(Element::Int8, &ordinals)),
                Some(array(Element::Text, &texts.iter().map(|text| Some(text_datum(text))).collect::<Vec<_>>())),
                Some(array(Element::Text, &streams)),
                Some(array(Element::Int8, &seqs)),
            ],
        );
    }
}

pub fn audit_check_anchor(call: &mut Call) -> Returns {
    let root = call.text().ok_or_else(|| Error::invalid("root", "must be given"))?;
    let anchor_id = call.int8();
    let mut set = call.set();
    let spi = Spi::connect();
    let fault = match Anchor::find(&spi, anchor_id, if anchor_id.is_none() { Some(root) } else { None })? {
        None => Some("no such anchor is recorded".to_owned()),
        Some(anchor) => {
            let _owner = AsOwner::switch();
            check(&spi, &anchor, root)
        }
    };
    set.put(&[Some(Datum::from(fault.is_none())), fault.as_deref().map(text_datum)]);
    Ok(None)
}

/// What is wrong with the chains that an anchor has recorded, if anything is.
fn check(spi: &Spi, anchor: &Anchor, root: &str) -> Option<String> {
    let mut tree = Tree::default();
    let mut fault = None;
    anchor.leaves(spi, |leaf| {
        tree.push(merkle::leaf(leaf.as_bytes()));
        if fault.is_none() {
            // A connection each, which frees what a look leaves behind.
            let spi = Spi::connect();
            fault = Head::parse(leaf)
                .map_or(Some("a leaf that was recorded is malformed".to_owned()), |head| lost(&spi, anchor, &head));
        }
    });
    let recorded: Digest = tree.root();
    if hex(&recorded) != root || anchor.root != root {
        return Some("the heads that were recorded do not make this root".to_owned());
    }
    fault
}

/// What has become of a head that is not in its chain any more.
fn lost(spi: &Spi, anchor: &Anchor, head: &Head) -> Option<String> {
    match head {
        Head::Stream { tenant, stream, seq, hash } => {
            let place = [Some(text_datum(tenant)), Some(text_datum(stream)), Some(Datum::from(*seq))];
            let found = EVENT_AT.run(spi, See::Caller, &place);
            let is_there = found.iter().any(|row| row.text(0) == Some(hash));
            let is_pruned = || IS_PRUNED.run(spi, See::Caller, &place).len() > 0;
            (!is_there && !is_pruned()).then(|| format!("stream {stream:?}: event {seq} is gone or another one"))
        }
        Head::Session { tenant, agent_id, session_id, position, digest } => {
            let [tenant, agent, session] = [tenant, agent_id, session_id].map(|text| Some(text_datum(text)));
            let found = ENTRY_AT.run(spi, See::Caller, &[tenant, agent, session, Some(Datum::from(*position))]);
            let is_there = found.first().is_some_and(|row| {
                let is_trimmed = row.int8(0).is_some_and(|base| base > *position);
                is_trimmed || row.bytes(1).is_some_and(|stored| hex(stored) == *digest)
            });
            let is_deleted = || track::tells_of_deletion(spi, &anchor.tenant, agent_id, session_id, anchor.trail_seq);
            (!is_there && !is_deleted()).then(|| {
                format!("session {session_id:?} of agent {agent_id:?}: entry {position} is gone or another one")
            })
        }
    }
}
