//! What the catalogue says of the extension, fact by fact, so that two installations can be compared.
//!
//! Nothing here depends on an OID, on a time, or on the version that is installed.

use std::collections::{BTreeMap, BTreeSet};

use crate::Connection;

/// Each kind of fact, and a query of its objects and of what is said of them.
const KINDS: &[(&str, &str)] = &[
    (
        "extension",
        "select extname, row(extowner::regrole, extnamespace::regnamespace, extrelocatable, obj_description(oid, 'pg_extension'))
         from pg_extension where extname = 'agent_sessions'",
    ),
    (
        "member",
        "select pg_describe_object(classid, objid, objsubid), deptype from pg_depend
         where refclassid = 'pg_extension'::regclass and refobjid = (select oid from pg_extension where extname = 'agent_sessions')",
    ),
    (
        "dump declaration",
        "select c.oid::regclass, 'carried ' || d.condition
         from pg_extension e, unnest(e.extconfig, e.extcondition) d (relation, condition) left join pg_class c on c.oid = d.relation
         where e.extname = 'agent_sessions'",
    ),
    (
        "schema",
        "select nspname, row(nspowner::regrole, obj_description(oid, 'pg_namespace'))
         from pg_namespace where nspname = 'agent_sessions'",
    ),
    (
        "relation",
        "select c.oid::regclass, row(c.relkind, c.relowner::regrole, c.relpersistence, a.amname, c.reloptions, t.reloptions,
           c.relrowsecurity, c.relforcerowsecurity, c.relreplident, s.spcname, c.relispartition, obj_description(c.oid, 'pg_class'))
         from pg_class c left join pg_am a on a.oid = c.relam left join pg_class t on t.oid = c.reltoastrelid
           left join pg_tablespace s on s.oid = c.reltablespace
         where c.relnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        // Some builds of PostgreSQL 15 keep a number of their own among a column's options.
        "column",
        "select a.attrelid::regclass || '.' || case when a.attisdropped then 'dropped' else a.attname end,
           row(a.attnum, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull,
             pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attstorage, a.attcompression, a.attstattarget,
             array(select o from unnest(a.attoptions) o where o not like 'pg\\_attver=%' order by o), a.attislocal, a.attinhcount, col_description(a.attrelid, a.attnum))
         from pg_attribute a join pg_class c on c.oid = a.attrelid
           left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
         where c.relnamespace = 'agent_sessions'::regnamespace and a.attnum > 0",
    ),
    (
        "constraint",
        "select conrelid::regclass || '.' || conname, row(contype, pg_get_constraintdef(oid), condeferrable, condeferred,
           convalidated, connoinherit, conislocal, obj_description(oid, 'pg_constraint'))
         from pg_constraint where connamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "index",
        "select indexrelid::regclass, row(pg_get_indexdef(indexrelid), indisprimary, indisvalid, indisready, indislive,
           indimmediate, indisclustered, indisreplident)
         from pg_index join pg_class on pg_class.oid = indrelid where relnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        // Without statistics the planner takes the last one made, among those that cost the same.
        "order of indexes",
        "select indrelid::regclass, string_agg(indexrelid::regclass::text, ' ' order by indexrelid)
         from pg_index join pg_class on pg_class.oid = indrelid where relnamespace = 'agent_sessions'::regnamespace group by indrelid",
    ),
    (
        "sequence",
        "select seqrelid::regclass, row(seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle,
           pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
         from pg_sequence join pg_class on pg_class.oid = seqrelid
           left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = seqrelid and d.deptype in ('a', 'i')
         where relnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "view",
        "select oid::regclass, pg_get_viewdef(oid) from pg_class
         where relnamespace = 'agent_sessions'::regnamespace and relkind in ('v', 'm')",
    ),
    (
        "rule",
        "select r.ev_class::regclass || '.' || r.rulename, row(pg_get_ruledef(r.oid), r.ev_enabled, obj_description(r.oid, 'pg_rewrite'))
         from pg_rewrite r join pg_class c on c.oid = r.ev_class
         where c.relnamespace = 'agent_sessions'::regnamespace and r.rulename <> '_RETURN'",
    ),
    (
        "function",
        "select oid::regprocedure, row(case when prokind = 'a' then 'an aggregate' else pg_get_functiondef(oid) end,
           proowner::regrole, probin, obj_description(oid, 'pg_proc'))
         from pg_proc where pronamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "type",
        "select t.oid::regtype, row(t.typowner::regrole, t.typtype, t.typcategory, t.typbasetype::regtype, t.typnotnull, t.typdefault,
           t.typcollation::regcollation, (select string_agg(enumlabel, ' ' order by enumsortorder) from pg_enum where enumtypid = t.oid),
           obj_description(t.oid, 'pg_type'))
         from pg_type t where t.typnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "trigger",
        "select t.tgrelid::regclass || '.' || t.tgname, row(pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger'))
         from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = 'agent_sessions'::regnamespace and not t.tgisinternal",
    ),
    (
        "policy",
        "select p.polrelid::regclass || '.' || p.polname, row(p.polcmd, p.polpermissive, p.polroles::regrole[],
           pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid), obj_description(p.oid, 'pg_policy'))
         from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "statistics",
        "select stxname, row(pg_get_statisticsobjdef(oid), stxowner::regrole, stxstattarget, obj_description(oid, 'pg_statistic_ext'))
         from pg_statistic_ext where stxnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "privilege",
        "with acls (object, acl) as (
           select 'schema ' || nspname, coalesce(nspacl, acldefault('n', nspowner)) from pg_namespace where nspname = 'agent_sessions'
           union all
           select oid::regclass::text, coalesce(relacl, acldefault(case when relkind = 'S' then 's' else 'r' end::\"char\", relowner)) from pg_class
           where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f', 'S')
           union all
           select attrelid::regclass || '.' || attname, attacl from pg_attribute join pg_class on pg_class.oid = attrelid
           where relnamespace = 'agent_sessions'::regnamespace
           union all
           select oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner)) from pg_proc where pronamespace = 'agent_sessions'::regnamespace
           union all
           select oid::regtype::text, coalesce(typacl, acldefault('T', typowner)) from pg_type
           where typnamespace = 'agent_sessions'::regnamespace and typelem = 0
         )
         select object, row(case grantee when 0 then 'public' else grantee::regrole::text end, privilege_type, grantor::regrole, is_grantable)
         from acls, lateral aclexplode(acl)",
    ),
    (
        // What pg_dump takes for granted: a user's own grants are missing from dumps once a script has made them its own.
        "initial privilege",
        "select pg_describe_object(i.classoid, i.objoid, i.objsubid), row(i.privtype,
           case a.grantee when 0 then 'public' else a.grantee::regrole::text end, a.privilege_type, a.grantor::regrole, a.is_grantable)
         from pg_init_privs i left join lateral aclexplode(i.initprivs) a on true
         where pg_describe_object(i.classoid, i.objoid, i.objsubid) like '%agent\\_sessions%'",
    ),
    (
        "default privilege",
        "select row(defaclrole::regrole, defaclobjtype), defaclacl::text from pg_default_acl where defaclnamespace = 'agent_sessions'::regnamespace",
    ),
    (
        "dependency",
        "select pg_describe_object(classid, objid, objsubid), deptype::text || ' ' || pg_describe_object(refclassid, refobjid, refobjsubid) from pg_depend
         where deptype <> 'e' and (classid, objid) in (
           select 'pg_class'::regclass::oid, oid from pg_class where relnamespace = 'agent_sessions'::regnamespace
           union all select 'pg_proc'::regclass, oid from pg_proc where pronamespace = 'agent_sessions'::regnamespace
           union all select 'pg_type'::regclass, oid from pg_type where typnamespace = 'agent_sessions'::regnamespace
           union all select 'pg_constraint'::regclass, oid from pg_constraint where connamespace = 'agent_sessions'::regnamespace
           union all select 'pg_trigger'::regclass, t.oid from pg_trigger t join pg_class c on c.oid = tgrelid
             where relnamespace = 'agent_sessions'::regnamespace and not tgisinternal
           union all select 'pg_policy'::regclass, p.oid from pg_policy p join pg_class c on c.oid = polrelid where relnamespace = 'agent_sessions'::regnamespace
           union all select 'pg_rewrite'::regclass, r.oid from pg_rewrite r join pg_class c on c.oid = ev_class where relnamespace = 'agent_sessions'::regnamespace
         )",
    ),
];

/// Members of any other class would be compared by name alone.
const DESCRIBED: &[&str] = &["pg_class", "pg_namespace", "pg_proc", "pg_type"];

/// The kind of a fact, and the object that it is about.
pub type About = (String, String);

/// All facts of one installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue(BTreeMap<About, BTreeSet<String>>);

impl Catalogue {
    /// The extension as it is installed in the connection's database, seen from its transaction.
    pub async fn of(connection: &Connection) -> Catalogue {
        let classes = "select distinct classid::regclass::text from pg_depend
            where refclassid = 'pg_extension'::regclass and refobjid = (select oid from pg_extension where extname = 'agent_sessions')";
        for class in texts(connection, classes).await {
            assert!(DESCRIBED.contains(&class[0].as_str()), "say here what is compared of a member in {}", class[0]);
        }
        let mut facts: BTreeMap<About, BTreeSet<String>> = BTreeMap::new();
        for (kind, sql) in KINDS {
            let sql = format!("select object::text, coalesce(fact::text, '') from ({sql}) facts (object, fact)");
            for mut row in texts(connection, &sql).await {
                let (fact, object) = (row.pop().unwrap_or_default(), row.pop().unwrap_or_default());
                facts.entry(((*kind).to_owned(), object)).or_default().insert(fact);
            }
        }
        Catalogue(facts)
    }

    /// What differs, with what the two say of it: facts of this one alone, and facts of the other alone.
    pub fn differences(&self, other: &Catalogue) -> BTreeMap<About, (Vec<String>, Vec<String>)> {
        let abouts: BTreeSet<&About> = self.0.keys().chain(other.0.keys()).collect();
        let none = BTreeSet::new();
        let differ = |about: &About| {
            let (ours, theirs) = (self.0.get(about).unwrap_or(&none), other.0.get(about).unwrap_or(&none));
            let alone = |one: &BTreeSet<String>, two: &BTreeSet<String>| one.difference(two).cloned().collect();
            (ours != theirs).then(|| (about.clone(), (alone(ours, theirs), alone(theirs, ours))))
        };
        abouts.into_iter().filter_map(differ).collect()
    }

    /// The facts of one kind, each with its object.
    pub fn facts(&self, kind: &str) -> Vec<(&str, &str)> {
        let of_kind = self.0.iter().filter(|((of, _), _)| of == kind);
        of_kind.flat_map(|((_, object), facts)| facts.iter().map(|fact| (object.as_str(), fact.as_str()))).collect()
    }
}

/// The rows of a query whose columns are texts.
async fn texts(connection: &Connection, sql: &str) -> Vec<Vec<String>> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect()
}
