//! Kept plans: what they see, and that nothing in a search_path reaches them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};
    use pgrx::pg_test;

    use crate::postgres::plan::{KeptPlan, See, Spi};
    use crate::postgres::value::text_datum;

    static COUNT_TO: KeptPlan =
        KeptPlan::new(c"select g from pg_catalog.generate_series(1::pg_catalog.int8, $1) g", &[INT8OID]);

    static SAME: KeptPlan = KeptPlan::new(c"select where $1 operator(pg_catalog.=) $2", &[TEXTOID, TEXTOID]);

    static SESSIONS: KeptPlan = KeptPlan::new(c"select s.sid from agent_sessions.session s", &[]);

    #[pg_test]
    fn a_stream_visits_every_row_once() {
        let spi = Spi::connect();
        for rows in [0, 1, 999, 1000, 1001, 2500] {
            let mut visited = Vec::new();
            COUNT_TO.stream(&spi, &[Some(Datum::from(rows))], |row| visited.extend(row.int8(0)));
            assert_eq!(visited, (1..=rows).collect::<Vec<i64>>());
        }
    }

    #[pg_test]
    fn a_plan_made_under_one_search_path_is_safe_under_another() {
        let spi = Spi::connect();
        let same = |left, right| {
            let arguments = [Some(text_datum(left)), Some(text_datum(right))];
            SAME.run(&spi, See::Now, &arguments).len() == 1
        };
        assert!(same("a", "a"));
        spi.execute("create schema hostile");
        spi.execute("create function hostile.never(text, text) returns boolean language sql as 'select false'");
        spi.execute("create operator hostile.= (leftarg = text, rightarg = text, function = hostile.never)");
        spi.execute("set local search_path = hostile, pg_catalog");
        assert!(same("a", "a"));
        assert!(!same("a", "b"));
    }

    #[pg_test]
    fn own_writes_are_seen_by_now_and_latest() {
        let spi = Spi::connect();
        spi.execute("select agent_sessions.session_create('own')");
        for see in [See::Now, See::Latest] {
            assert_eq!(SESSIONS.run(&spi, see, &[]).len(), 1);
        }
    }
}
