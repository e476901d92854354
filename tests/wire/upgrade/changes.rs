//! A version before the first, made for these tests: the current script with some objects missing and others as they might
//! once have been, and the update that leads from it to the current one, change by change.

/// The version that is made here; no release has ever had that name.
pub const OLD: &str = "0.0.1";

/// How one thing differs in the old version, and what an update does about it.
pub struct Change {
    /// The kind of fact, and the object, that an installation lacks that was updated without it.
    pub kind: &'static str,
    pub object: &'static str,
    /// The statements that the old script does not have, by how they begin.
    missing: &'static [&'static str],
    /// Texts of the current script, and what the old one has in their place.
    otherwise: &'static [(&'static str, &'static str)],
    /// The part of the update script, made of the current one.
    update: fn(&str) -> String,
}

pub const CHANGES: &[Change] = &[
    // What the old version told by the presence of a row, and its doctor() had no view of.
    Change {
        kind: "column",
        object: "agent_sessions.setting.value",
        missing: &[
            "comment on column agent_sessions.setting.value",
            "create view agent_sessions.finding_access",
            "comment on view agent_sessions.finding_access",
            "create view agent_sessions.finding_data",
            "comment on view agent_sessions.finding_data",
        ],
        otherwise: &[
            (
                "  name text collate \"C\" primary key,\n  value text not null\n",
                "  name text collate \"C\" primary key\n",
            ),
            (FINDINGS_OF_ACCESS, ""),
            (FINDINGS_OF_DATA, ""),
        ],
        // Not by an UPDATE, on which a trigger of the owner's would run as the superuser that an update is.
        update: |script| {
            "alter table agent_sessions.setting add column value text not null default 'on';
             alter table agent_sessions.setting alter column value drop default;\n"
                .to_owned()
                + &statement(script, "comment on column agent_sessions.setting.value")
                + &statement(script, "create view agent_sessions.finding_access")
                + &statement(script, "comment on view agent_sessions.finding_access")
                + &statement(script, "create view agent_sessions.finding_data")
                + &statement(script, "comment on view agent_sessions.finding_data")
                + &or_replace(&statement(script, "create function agent_sessions.doctor_report"))
        },
    },
    Change {
        kind: "column",
        object: "agent_sessions.session.metadata",
        missing: &[],
        otherwise: &[("  alter column metadata set statistics 0,\n", "")],
        update: |_| "alter table agent_sessions.session alter column metadata set statistics 0;".to_owned(),
    },
    Change {
        kind: "constraint",
        object: "agent_sessions.session.session_times_check",
        missing: &[],
        otherwise: &[("  constraint session_times_check check (isfinite(created_at) and isfinite(active_at)),\n", "")],
        update: |_| {
            "alter table agent_sessions.session add constraint session_times_check check (isfinite(created_at) and isfinite(active_at));"
                .to_owned()
        },
    },
    Change {
        kind: "index",
        object: "agent_sessions.audit_anchor_leaf_stream_idx",
        missing: &["create index audit_anchor_leaf_stream_idx"],
        otherwise: &[],
        update: |script| statement(script, "create index audit_anchor_leaf_stream_idx"),
    },
    Change {
        kind: "sequence",
        object: "agent_sessions.lease_fence_seq",
        missing: &[],
        otherwise: &[(
            "create sequence agent_sessions.lease_fence_seq;",
            "create sequence agent_sessions.lease_fence_seq cache 5;",
        )],
        update: |_| "alter sequence agent_sessions.lease_fence_seq cache 1;".to_owned(),
    },
    Change {
        kind: "trigger",
        object: "agent_sessions.tenant_binding.forget",
        missing: &["alter table agent_sessions.tenant_binding enable always trigger forget;"],
        otherwise: &[],
        update: |script| statement(script, "alter table agent_sessions.tenant_binding enable always trigger forget;"),
    },
    Change {
        kind: "relation",
        object: "agent_sessions.audit_anchor_leaf",
        missing: &["alter table agent_sessions.audit_anchor_leaf enable row level security"],
        otherwise: &[],
        update: |script| statement(script, "alter table agent_sessions.audit_anchor_leaf enable row level security"),
    },
    Change {
        kind: "policy",
        object: "agent_sessions.audit_anchor_leaf.visible",
        missing: &[
            "create policy visible on agent_sessions.audit_anchor_leaf",
            "comment on policy visible on agent_sessions.audit_anchor_leaf",
        ],
        otherwise: &[],
        update: |script| {
            statement(script, "create policy visible on agent_sessions.audit_anchor_leaf")
                + &statement(script, "comment on policy visible on agent_sessions.audit_anchor_leaf")
        },
    },
    Change {
        kind: "view",
        object: "agent_sessions.lease_status",
        missing: &[],
        otherwise: &[(", s.lease_expires_at - clock_timestamp() as remaining", "")],
        update: |script| or_replace(&statement(script, "create view agent_sessions.lease_status")),
    },
    Change {
        kind: "function",
        object: "agent_sessions.audit_stats(text,timestamp with time zone,timestamp with time zone,text)",
        missing: &[],
        otherwise: &[("  order by m.action, m.status;\n", "  order by m.status, m.action;\n")],
        update: |script| or_replace(&statement(script, "create function agent_sessions.audit_stats")),
    },
    Change {
        kind: "member",
        object: "function agent_sessions.tenant_unbind(name,text)",
        missing: &["create function agent_sessions.tenant_unbind", "comment on function agent_sessions.tenant_unbind"],
        otherwise: &[],
        update: |script| {
            statement(script, "create function agent_sessions.tenant_unbind")
                + &statement(script, "comment on function agent_sessions.tenant_unbind")
        },
    },
    Change {
        kind: "member",
        object: "function agent_sessions.audit_export(text,bigint,integer,text)",
        missing: &["create function agent_sessions.audit_export", "comment on function agent_sessions.audit_export"],
        otherwise: &[],
        update: |script| {
            statement(script, "create function agent_sessions.audit_export")
                + &statement(script, "comment on function agent_sessions.audit_export")
        },
    },
    Change {
        kind: "privilege",
        object: "agent_sessions.audit_export(text,bigint,integer,text)",
        missing: &[],
        otherwise: &[],
        update: |_| NEW_OBJECTS.to_owned(),
    },
    Change {
        kind: "function",
        object: "agent_sessions.session_verify(text,text,text)",
        missing: &["comment on function agent_sessions.session_verify"],
        otherwise: &[],
        update: |script| statement(script, "comment on function agent_sessions.session_verify"),
    },
    Change {
        kind: "dump declaration",
        object: "agent_sessions.audit_tracking",
        missing: &["select pg_catalog.pg_extension_config_dump('agent_sessions.audit_tracking'"],
        otherwise: &[],
        update: |script| {
            statement(script, "select pg_catalog.pg_extension_config_dump('agent_sessions.audit_tracking'")
        },
    },
    Change {
        kind: "dump declaration",
        object: "agent_sessions.session_delta",
        missing: &[],
        otherwise: &[(
            "'agent_sessions.session_delta', 'ORDER BY sid, target, chunk_no'",
            "'agent_sessions.session_delta', ''",
        )],
        update: |script| statement(script, "select pg_catalog.pg_extension_config_dump('agent_sessions.session_delta'"),
    },
    // The last one: what there is by now is what is right.
    Change {
        kind: "view",
        object: "agent_sessions.as_installed",
        missing: &[],
        otherwise: &[],
        update: |script| {
            ["as_installed", "schema_object", "as_found"]
                .map(|view| or_replace(&statement(script, &format!("create view agent_sessions.{view} "))))
                .concat()
                + &script[script.rfind(RECORDING).expect("the block of installed.sql")..]
        },
    },
];

/// What an update begins with.
pub const GUARD: &str = include_str!("../../../sql/released/guard.sql");

/// How the block of `sql/installed.sql` begins, which ends the script.
const RECORDING: &str = "set local quote_all_identifiers = off;\ndo $$\n";

const FINDINGS_OF_ACCESS: &str =
    "    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_access f
    union all
";

const FINDINGS_OF_DATA: &str =
    "    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_data f
    union all
";

/// What an update has to do for the objects that it makes. They belong to whoever has the tables by now: neither to whoever
/// updates, nor to the extension's owner, which is a superuser after pg_upgrade. And nothing is granted or revoked on what
/// was there before: a user's own grants would be missing from every later dump.
const NEW_OBJECTS: &str = "
do $$
declare
  owner name := (select pg_catalog.pg_get_userbyid(c.relowner) from pg_catalog.pg_class c
                 where c.oid = 'agent_sessions.session'::pg_catalog.regclass);
  made record;
begin
  for made in
    select 'function' as kind, 'function' as grant_kind, p.oid::regprocedure::text as name, l.lanname = 'c' as is_c,
      coalesce(p.proacl, acldefault('f', p.proowner)) as acl
    from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
    where p.pronamespace = 'agent_sessions'::regnamespace and p.proname in ('tenant_unbind', 'audit_export')
    union all
    select 'view', 'table', c.oid::regclass::text, false, c.relacl
    from pg_catalog.pg_class c
    where c.relnamespace = 'agent_sessions'::regnamespace and c.relname in ('finding_access', 'finding_data')
  loop
    if made.is_c then
      execute pg_catalog.format('grant execute on function %s to %I with grant option', made.name, owner);
    else
      execute pg_catalog.format('alter %s %s owner to %I', made.kind, made.name, owner);
    end if;
    if exists (select from pg_catalog.aclexplode(made.acl) a where a.grantee = 0) then
      execute pg_catalog.format('revoke all on %s %s from public', made.grant_kind, made.name);
    end if;
  end loop;
end
$$;
";

/// The script that installs the old version.
pub fn old_script(current: &str) -> String {
    let mut script = current.to_owned();
    for change in CHANGES {
        for begin in change.missing {
            script = replaced(&script, &statement(current, begin), "");
        }
        for (now, before) in change.otherwise {
            script = replaced(&script, now, before);
        }
    }
    script
}

/// The script that leads from the old version to the current one; `without` one of its changes, or with all of them.
pub fn update_script(current: &str, without: Option<usize>) -> String {
    let changes = CHANGES.iter().enumerate().filter(|(number, _)| Some(*number) != without);
    std::iter::once(GUARD.to_owned()).chain(changes.map(|(_, change)| (change.update)(current) + "\n")).collect()
}

/// The statement of a script that begins like this, with the line break behind it.
fn statement(script: &str, begin: &str) -> String {
    let starts: Vec<usize> = script.match_indices(begin).map(|(place, _)| place).collect();
    let [start] = starts[..] else { panic!("the script has {} statements that begin with: {begin}", starts.len()) };
    let rest = &script[start..];
    // A body of SQL has statements of its own.
    let end = if rest[..rest.find(";\n").expect("an end")].contains("\nbegin atomic\n") { "\nend;\n" } else { ";\n" };
    rest[..rest.find(end).expect("an end") + end.len()].to_owned()
}

fn or_replace(statement: &str) -> String {
    statement.replacen("create ", "create or replace ", 1)
}

fn replaced(script: &str, now: &str, before: &str) -> String {
    assert_eq!(script.matches(now).count(), 1, "the script has to have this once: {now}");
    script.replacen(now, before, 1)
}
