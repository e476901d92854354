//! A database with everything in it that a backup has to bring back, and what has to be found again.

use std::collections::BTreeSet;

use agent_sessions_tests::Connection;

use crate::dump::{self, FOREST, Known, TENANTS};

/// Of one tenant: a stream of its own, one that was imported, one that was pruned, and anchors before and after that. The
/// trail that the engine writes of the sessions is beside them.
const TRAIL: &str = r#"
    select agent_sessions.audit_append('sell ' || n, json_build_object('n', n, 'text', E'\\.\t\u0001'), stream => 'orders', actor => 'ann', target => 'café 🔥',
      session_id => 'root', status => 'ok', attrs => '{"n": 1.50}', occurred_at => '2001-02-03 04:05:06.789+00', event_id => 'e' || n)
    from generate_series(1, 30) n;
    select agent_sessions.audit_append('look', stream => '') from generate_series(1, 5);
    select agent_sessions.audit_import('imported', json_agg(json_build_object('data', data, 'hash', hash) order by seq), '{"action": "action"}')
    from agent_sessions.audit_event where tenant = agent_sessions.current_tenant() and stream = 'orders';
    select agent_sessions.audit_anchor();
    select agent_sessions.audit_prune('orders', 11);
    select agent_sessions.session_erase('root', item_id => 'item 11', lease => lease)
      from agent_sessions.session_break_lease('root'), agent_sessions.session_claim('root', '1 hour', holder => 'a holder');
    select agent_sessions.audit_append('sell', stream => 'orders', actor => 'ann', event_id => 'late');
    select agent_sessions.audit_anchor()"#;

/// Fills the database, for a role that may do everything.
pub async fn grow(admin: &Connection) {
    for tenant in TENANTS {
        admin
            .run(&format!("set agent_sessions.tenant = '{tenant}'; select agent_sessions.audit_track('all', true)"))
            .await;
        admin.run(FOREST).await;
        admin.run(TRAIL).await;
    }
    admin.run("reset agent_sessions.tenant").await;
}

/// What a superuser finds in a database.
#[derive(Clone)]
pub struct World {
    /// Of each table the number and a hash of its rows, without the leases.
    tables: Vec<String>,
    /// Of each sequence what it gives next.
    sequences: Vec<(String, i64)>,
    /// What the readers show of each session, and what its chain says.
    shown: Vec<String>,
    /// What each stream's chain says.
    streams: Vec<String>,
    /// The root of each anchor, with its tenant.
    anchors: Vec<(String, String)>,
    leases: Vec<String>,
}

/// The tables and sequences: each with its columns but those of the lease, and its key.
const RELATIONS: &str = "
    select c.oid::regclass::text, c.relkind = 'S',
      (select coalesce(string_agg(quote_ident(attname), ', ' order by attnum), '') from pg_attribute where attrelid = c.oid and attnum > 0
         and not attisdropped and attname not in ('lease_digest', 'lease_holder', 'lease_expires_at')),
      (select coalesce(string_agg(quote_ident(attname), ', ' order by array_position(indkey::int2[], attnum)), '')
       from pg_index join pg_attribute on attrelid = indrelid and attnum = any (indkey) where indrelid = c.oid and indisprimary)
    from pg_class c where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind in ('r', 'S') order by 1";

const STREAMS: &str = "
    select concat_ws(' ', t.tenant, v.stream, v.entries, v.redacted, v.reason, case when v.ok then 'verifies' end)
    from (select distinct tenant from agent_sessions.audit_chain) t, lateral agent_sessions.audit_verify(tenant => t.tenant) v order by 1";

const LEASES: &str = "
    select concat_ws(' ', sid, lease_digest, lease_holder, lease_expires_at, lease_fence) from agent_sessions.session
    where num_nonnulls(lease_digest, lease_holder, lease_expires_at) > 0 order by sid";

impl World {
    pub async fn of(superuser: &Connection) -> World {
        let (mut tables, mut sequences) = (Vec::new(), Vec::new());
        for relation in superuser.query(RELATIONS, &[]).await.expect("the relations") {
            let (name, is_sequence): (String, bool) = (relation.get(0), relation.get(1));
            if is_sequence {
                let next = format!("select last_value + is_called::integer from {name}");
                sequences.push((name, superuser.value(&next, &[]).await));
                continue;
            }
            let (columns, key): (&str, &str) = (relation.get(2), relation.get(3));
            let rows = format!(
                "select '{name} ' || count(*) || ' ' || coalesce(md5(string_agg(md5(row({columns})::text), '' order by {key})), '-') from {name}"
            );
            tables.push(superuser.value(&rows, &[]).await);
        }
        let texts = async |sql: &str| -> Vec<String> {
            let rows = superuser.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
            rows.iter().map(|row| row.get(0)).collect()
        };
        let anchors = "select tenant, root from agent_sessions.audit_anchor order by tenant, anchor_id";
        let anchors = superuser.query(anchors, &[]).await.expect("the anchors");
        World {
            tables,
            sequences,
            shown: dump::shown(superuser).await,
            streams: texts(STREAMS).await,
            anchors: anchors.iter().map(|row| (row.get(0), row.get(1))).collect(),
            leases: texts(LEASES).await,
        }
    }

    /// The same but for the rows of some tables.
    pub fn without(mut self, tables: &[&str]) -> World {
        self.tables.retain(|told| !tables.iter().any(|table| told.starts_with(&format!("agent_sessions.{table} "))));
        self
    }

    /// A world that a test may start from: nothing in it is empty, and everything verifies.
    pub fn assert_whole(&self) {
        // A table that is empty in the source would not be missed. What access functions were told is asked for elsewhere.
        let may_be_empty = ["agent_sessions.setting 0 -", "agent_sessions.tenant_binding 0 -"];
        for table in &self.tables {
            assert!(!table.ends_with(" 0 -") || may_be_empty.contains(&table.as_str()), "{table}");
        }
        for told in self.shown.iter().chain(&self.streams) {
            assert!(told.contains(" verifies"), "it does not verify: {told}");
        }
        assert_eq!((self.anchors.len(), self.leases.len()), (2 * TENANTS.len(), 3 * TENANTS.len()));
    }

    /// A dump brings back all but the leases.
    pub async fn assert_restored(&self, superuser: &Connection, how: &str) {
        self.clone().without_leases().assert_copied(superuser, how).await;
    }

    /// A copy of the files brings back all.
    pub async fn assert_copied(&self, superuser: &Connection, how: &str) {
        self.assert_copied_but(&[], superuser, how).await;
    }

    /// The same with other rows in some tables.
    pub async fn assert_copied_but(&self, tables: &[&str], superuser: &Connection, how: &str) {
        World::of(superuser).await.without(tables).assert_is(&self.clone().without(tables), how);
        self.assert_anchored(superuser, how).await;
    }

    /// A copy that went through recovery: sequences have run ahead.
    pub async fn assert_recovered(&self, superuser: &Connection, how: &str) {
        let found = World::of(superuser).await;
        for (found, expected) in found.sequences.iter().zip(&self.sequences) {
            assert!(found.0 == expected.0 && found.1 >= expected.1, "{how}: {found:?} after {expected:?}");
        }
        World { sequences: self.sequences.clone(), ..found }.assert_is(self, how);
        self.assert_anchored(superuser, how).await;
    }

    /// What clients read of all tenants but one is the same.
    pub async fn assert_read_but(&self, tenant: &str, superuser: &Connection, how: &str) {
        let mut found = World::of(superuser).await;
        for told in [&mut found.shown, &mut found.streams] {
            told.retain(|line| !line.starts_with(&format!("{tenant} ")));
        }
        let (tables, sequences, leases) = (self.tables.clone(), self.sequences.clone(), self.leases.clone());
        World { tables, sequences, leases, ..found }.assert_is(self, how);
        self.assert_anchored(superuser, how).await;
    }

    fn assert_is(&self, expected: &World, how: &str) {
        let (found, expected) = (self.lines(), expected.lines());
        let (lost, new): (Vec<_>, Vec<_>) =
            (expected.difference(&found).collect(), found.difference(&expected).collect());
        assert!(lost.is_empty() && new.is_empty(), "{how}: lost {lost:#?}\nnew {new:#?}");
    }

    fn lines(&self) -> BTreeSet<String> {
        let sequences = self.sequences.iter().map(|(name, next)| format!("{name} {next}"));
        let anchors = self.anchors.iter().map(|(tenant, root)| format!("anchor of '{tenant}' {root}"));
        let told = self.tables.iter().chain(&self.shown).chain(&self.streams).chain(&self.leases).cloned();
        told.chain(sequences).chain(anchors).collect()
    }

    pub fn without_leases(self) -> World {
        World { leases: Vec::new(), ..self }
    }

    /// The roots that were kept outside still hold.
    async fn assert_anchored(&self, superuser: &Connection, how: &str) {
        for (tenant, root) in &self.anchors {
            superuser.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            let check = "select ok from agent_sessions.audit_check_anchor($1::text)";
            assert!(superuser.value::<bool>(check, &[root]).await, "{how}: anchor {root} of '{tenant}'");
        }
        superuser.run("reset agent_sessions.tenant").await;
    }

    /// Every session and every stream is written on, with fences that grow.
    pub async fn assert_goes_on(&self, superuser: &Connection, writer: &Connection, how: &str) {
        let end_leases = "select agent_sessions.session_break_lease(session_id, agent_id)
            from agent_sessions.session where tenant = agent_sessions.current_tenant() and lease_expires_at is not null and deleted_at is null";
        for tenant in TENANTS {
            superuser
                .run(&format!("set agent_sessions.tenant = '{tenant}'; {end_leases}; reset agent_sessions.tenant"))
                .await;
        }
        let last_fence =
            self.sequences.iter().find(|(name, _)| name.ends_with(".lease_fence_seq")).expect("fences").1 - 1;
        let known: Vec<Known> = dump::known(superuser).await;
        assert_eq!(known.len(), self.shown.len(), "{how}");
        for session in &known {
            session.assert_goes_on(writer, last_fence, how).await;
        }
        // The one that the engine writes, of its own name, has been told of the branches by now.
        let append = "select s.head_seq + 1 = a.seq from agent_sessions.audit_stream s,
            lateral agent_sessions.audit_append('after', stream => s.stream) a where s.stream <> 'agent_sessions'";
        let mut streams = 0;
        for tenant in TENANTS {
            writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            let follows = writer.query(append, &[]).await.expect("appends to every stream");
            assert!(follows.iter().all(|row| row.get(0)), "{how}");
            streams += follows.len();
            let replayed = "select outcome from agent_sessions.audit_append('sell', stream => 'orders', actor => 'ann', event_id => 'late')";
            assert_eq!(writer.value::<String>(replayed, &[]).await, "replayed", "{how}");
        }
        let theirs = |line: &&String| TENANTS.iter().any(|tenant| line.starts_with(&format!("{tenant} ")));
        assert_eq!(streams + TENANTS.len(), self.streams.iter().filter(theirs).count(), "{how}");
        self.assert_anchored(superuser, how).await;
        for told in dump::shown(superuser).await {
            assert!(told.contains(" verifies "), "{how}: {told}");
        }
    }
}
