//! The call of `session_branch` that many tests make.

use tokio_postgres::Error;

use crate::Connection;

const BRANCH: &str = "select session_id, agent_id, branched_from, fork_position, next_position
    from agent_sessions.session_branch(
      session_id => $1::text, at_target => $2::bigint, at_item_id => $3::text, at_tag => $4::text,
      new_session_id => $5::text, inherit => $6::boolean, seed => $7::text::json, title => $8::text,
      new_agent_id => $9::text, agent_id => $10::text, lease => $11::text)";

/// One call of session_branch; what is not set is not given.
#[derive(Clone, Debug, Default)]
pub struct Branch<'a> {
    session_id: &'a str,
    at_target: Option<i64>,
    at_item_id: Option<&'a str>,
    at_tag: Option<&'a str>,
    new_session_id: Option<&'a str>,
    inherit: Option<bool>,
    seed: Option<&'a str>,
    title: Option<&'a str>,
    new_agent_id: Option<&'a str>,
    agent_id: Option<&'a str>,
    lease: Option<&'a str>,
}

/// What the row of a new branch says of its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Branched {
    pub session_id: String,
    pub agent_id: String,
    pub branched_from: Option<String>,
    pub fork_position: Option<i64>,
    pub next_position: i64,
}

impl<'a> Branch<'a> {
    /// A branch whose id is left to the database.
    pub fn of(session_id: &'a str) -> Self {
        Self { session_id, ..Self::default() }
    }

    pub fn named(mut self, session_id: &'a str) -> Self {
        self.new_session_id = Some(session_id);
        self
    }

    pub fn at_target(mut self, position: i64) -> Self {
        self.at_target = Some(position);
        self
    }

    pub fn at_item_id(mut self, item_id: &'a str) -> Self {
        self.at_item_id = Some(item_id);
        self
    }

    pub fn at_tag(mut self, tag: &'a str) -> Self {
        self.at_tag = Some(tag);
        self
    }

    pub fn inherit(mut self, inherit: bool) -> Self {
        self.inherit = Some(inherit);
        self
    }

    pub fn seed(mut self, payload: &'a str) -> Self {
        self.seed = Some(payload);
        self
    }

    pub fn title(mut self, title: &'a str) -> Self {
        self.title = Some(title);
        self
    }

    pub fn new_agent_id(mut self, agent_id: &'a str) -> Self {
        self.new_agent_id = Some(agent_id);
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

    /// The branch, or the server's error.
    pub async fn run(&self, connection: &Connection) -> Result<Branched, Error> {
        let row = connection
            .query_one(
                BRANCH,
                &[
                    &self.session_id,
                    &self.at_target,
                    &self.at_item_id,
                    &self.at_tag,
                    &self.new_session_id,
                    &self.inherit,
                    &self.seed,
                    &self.title,
                    &self.new_agent_id,
                    &self.agent_id,
                    &self.lease,
                ],
            )
            .await?;
        Ok(Branched {
            session_id: row.get(0),
            agent_id: row.get(1),
            branched_from: row.get(2),
            fork_position: row.get(3),
            next_position: row.get(4),
        })
    }
}

impl Connection {
    /// A branch behind the last entry of a session, which must be made.
    pub async fn branch(&self, session_id: &str, new_session_id: &str) -> Branched {
        self.branched(Branch::of(session_id).named(new_session_id)).await
    }

    /// A branch that must be made.
    pub async fn branched(&self, branch: Branch<'_>) -> Branched {
        branch.run(self).await.unwrap_or_else(|error| panic!("{branch:?}: {error:?}"))
    }
}
