//! The calls of `agent_sessions` that many tests make, in the one call form for all drivers: JSON goes in as
//! `$n::text::json` and comes out as `::text`.

use tokio_postgres::Error;

use crate::Connection;

const APPEND: &str = "select agent_sessions.session_append(
    session_id => $1::text, payload => $2::text::json, kind => $3::text, item_id => $4::text, tag => $5::text,
    author => $6::text, attrs => $7::text::jsonb, kept_from => $8::bigint, expected_position => $9::bigint,
    on_conflict => $10::text, on_missing => $11::text, agent_id => $12::text, lease => $13::text)";

/// One call of session_append; what is not set is not given.
#[derive(Clone, Debug, Default)]
pub struct Append<'a> {
    session_id: &'a str,
    payload: &'a str,
    kind: Option<&'a str>,
    item_id: Option<&'a str>,
    tag: Option<&'a str>,
    author: Option<&'a str>,
    attrs: Option<&'a str>,
    kept_from: Option<i64>,
    expected_position: Option<i64>,
    on_conflict: Option<&'a str>,
    on_missing: Option<&'a str>,
    agent_id: Option<&'a str>,
    lease: Option<&'a str>,
}

impl<'a> Append<'a> {
    pub fn to(session_id: &'a str, payload: &'a str) -> Self {
        Self { session_id, payload, ..Self::default() }
    }

    pub fn kind(mut self, kind: &'a str) -> Self {
        self.kind = Some(kind);
        self
    }

    pub fn item_id(mut self, item_id: &'a str) -> Self {
        self.item_id = Some(item_id);
        self
    }

    pub fn tag(mut self, tag: &'a str) -> Self {
        self.tag = Some(tag);
        self
    }

    pub fn author(mut self, author: &'a str) -> Self {
        self.author = Some(author);
        self
    }

    pub fn attrs(mut self, attrs: &'a str) -> Self {
        self.attrs = Some(attrs);
        self
    }

    pub fn kept_from(mut self, position: i64) -> Self {
        self.kept_from = Some(position);
        self
    }

    pub fn expected_position(mut self, position: i64) -> Self {
        self.expected_position = Some(position);
        self
    }

    pub fn on_conflict(mut self, word: &'a str) -> Self {
        self.on_conflict = Some(word);
        self
    }

    pub fn on_missing(mut self, word: &'a str) -> Self {
        self.on_missing = Some(word);
        self
    }

    pub fn agent_id(mut self, agent_id: &'a str) -> Self {
        self.agent_id = Some(agent_id);
        self
    }

    pub fn lease(mut self, lease: &'a str) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The position, or the server's error.
    pub async fn run(&self, connection: &Connection) -> Result<i64, Error> {
        connection
            .try_value(
                APPEND,
                &[
                    &self.session_id,
                    &self.payload,
                    &self.kind,
                    &self.item_id,
                    &self.tag,
                    &self.author,
                    &self.attrs,
                    &self.kept_from,
                    &self.expected_position,
                    &self.on_conflict,
                    &self.on_missing,
                    &self.agent_id,
                    &self.lease,
                ],
            )
            .await
    }
}

/// A row of session_history, or of session_log.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub position: i64,
    pub op: String,
    pub kind: Option<String>,
    pub item_id: Option<String>,
    pub tag: Option<String>,
    pub author: Option<String>,
    pub payload: Option<String>,
    pub attrs: Option<String>,
    pub digest: Vec<u8>,
}

/// The row of session_verify.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub entries: i64,
    pub redacted: i64,
    pub ok: bool,
    pub first_bad_position: Option<i64>,
    pub reason: Option<String>,
}

impl Connection {
    pub async fn create_session(&self, session_id: &str) {
        let create = "select session_id from agent_sessions.session_create(session_id => $1::text)";
        let created: String = self.value(create, &[&session_id]).await;
        assert_eq!(created, session_id);
    }

    /// Appends a message that must be taken, and returns its position.
    pub async fn append(&self, session_id: &str, payload: &str) -> i64 {
        match self.try_append(session_id, payload).await {
            Ok(position) => position,
            Err(error) => panic!("an append to {session_id}: {error:?}"),
        }
    }

    pub async fn try_append(&self, session_id: &str, payload: &str) -> Result<i64, Error> {
        Append::to(session_id, payload).run(self).await
    }

    /// Appends a message by plain SQL, and returns the number of rows inserted.
    pub async fn raw_append(&self, session_id: &str, payload: &str) -> Result<u64, Error> {
        let insert = "insert into agent_sessions.session_item (sid, payload)
                      select sid, $2::text::json from agent_sessions.session where session_id = $1::text";
        self.execute(insert, &[&session_id, &payload]).await
    }

    /// The same with the position that the entry must land at.
    pub async fn raw_append_at(&self, session_id: &str, position: i64, payload: &str) -> Result<u64, Error> {
        let insert = "insert into agent_sessions.session_item (sid, position, payload)
                      select sid, $2::bigint, $3::text::json from agent_sessions.session where session_id = $1::text";
        self.execute(insert, &[&session_id, &position, &payload]).await
    }

    /// Appends a JSON array of elements that must be taken, and returns their positions.
    pub async fn append_batch(&self, session_id: &str, items: &str) -> Vec<i64> {
        match self.try_append_batch(session_id, items, None).await {
            Ok(positions) => positions,
            Err(error) => panic!("a batch to {session_id}: {error:?}"),
        }
    }

    pub async fn try_append_batch(
        &self,
        session_id: &str,
        items: &str,
        expected_position: Option<i64>,
    ) -> Result<Vec<i64>, Error> {
        let batch = "select position from agent_sessions.session_append_batch(
            session_id => $1::text, items => $2::text::json, expected_position => $3::bigint) order by ordinal";
        let rows = self.query(batch, &[&session_id, &items, &expected_position]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The live items, oldest first.
    pub async fn history(&self, session_id: &str) -> Vec<Item> {
        self.items("session_history", session_id).await
    }

    /// Every entry of the log, oldest first.
    pub async fn log(&self, session_id: &str) -> Vec<Item> {
        self.items("session_log", session_id).await
    }

    async fn items(&self, function: &str, session_id: &str) -> Vec<Item> {
        let sql = format!(
            "select position, op::text, kind, item_id, tag, author, payload::text, attrs::text, digest
             from agent_sessions.{function}(session_id => $1::text)"
        );
        let rows = match self.query(&sql, &[&session_id]).await {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{error:?}"),
        };
        rows.into_iter()
            .map(|row| Item {
                position: row.get(0),
                op: row.get(1),
                kind: row.get(2),
                item_id: row.get(3),
                tag: row.get(4),
                author: row.get(5),
                payload: row.get(6),
                attrs: row.get(7),
                digest: row.get(8),
            })
            .collect()
    }

    /// What session_verify says; there is a row for every session that exists.
    pub async fn verify(&self, session_id: &str) -> Verdict {
        let sql = "select entries, redacted, ok, first_bad_position, reason
                   from agent_sessions.session_verify(session_id => $1::text)";
        match self.query_one(sql, &[&session_id]).await {
            Ok(row) => Verdict {
                entries: row.get(0),
                redacted: row.get(1),
                ok: row.get(2),
                first_bad_position: row.get(3),
                reason: row.get(4),
            },
            Err(error) => panic!("session_verify of {session_id}: {error:?}"),
        }
    }

    /// The log has exactly this many entries, at positions from 0 without a gap, and its chain verifies.
    pub async fn assert_dense(&self, session_id: &str, entries: i64) {
        let positions: Vec<i64> = self.log(session_id).await.iter().map(|entry| entry.position).collect();
        assert_eq!(positions, (0..entries).collect::<Vec<i64>>(), "positions of {session_id}");
        let verdict = self.verify(session_id).await;
        assert_eq!(
            verdict,
            Verdict { entries, redacted: 0, ok: true, first_bad_position: None, reason: None },
            "the chain of {session_id}"
        );
    }
}
