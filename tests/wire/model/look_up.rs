//! What the numbers, sessions and leases of a step come to, as the model stands.

use super::contract::Model;
use super::log::Session;
use super::step::{Kind, Lease, NAMES, Name, Number, Step, Who};

impl Model {
    /// The step with its numbers and its lease as they are now.
    pub fn look_up(&self, step: &Step) -> Step {
        let mut step = step.clone();
        for who in step.sessions() {
            *who = Who::Is(self.name(*who));
        }
        let session = self.find(step.session.name()).map(|session| &self.sessions[session]);
        for number in step.call.numbers() {
            *number = Number::Is(number_in(session, *number));
        }
        step.lease = self.lease(&step, session);
        step
    }

    fn name(&self, who: Who) -> Name {
        let one = |n: usize, names: Vec<Name>| names.iter().copied().cycle().nth(n);
        let existing = || self.sessions.iter().filter(|session| !session.deleted);
        let found = match who {
            Who::Is(name) => Some(name),
            Who::Existing(n) => one(n, existing().map(|session| session.name).collect()),
            Who::Such(kind, n) => {
                let such = existing().filter(|session| self.is_such(session, kind));
                return one(n, such.map(|session| session.name).collect())
                    .unwrap_or_else(|| self.name(Who::Existing(n)));
            }
            Who::Free(n) => one(n, NAMES.into_iter().filter(|name| self.find(*name).is_none()).collect()),
        };
        found.unwrap_or(NAMES[0])
    }

    fn is_such(&self, session: &Session, kind: Kind) -> bool {
        match kind {
            Kind::Leased => session.lease.is_some(),
            Kind::Streaming => session.newest_open().is_some(),
            Kind::Branch => session.source.is_some(),
            Kind::Source => self.find(session.name).is_some_and(|number| self.is_needed(number)),
        }
    }

    fn lease(&self, step: &Step, session: Option<&Session>) -> Lease {
        let live = session.and_then(|session| session.lease);
        let (found, by_setting) = match step.lease {
            Lease::Live { by_setting } => (live, by_setting),
            Lease::Lost { which, by_setting } => {
                let is_lost = |number: &usize| {
                    let of = &self.sessions[self.leases[*number]];
                    of.name == step.session.name() && of.lease != Some(*number)
                };
                let lost: Vec<usize> = (0..self.leases.len()).filter(is_lost).collect();
                ((!lost.is_empty()).then(|| lost[which % lost.len()]), by_setting)
            }
            Lease::All => {
                let live = self.sessions.iter().filter(|session| !session.deleted);
                return Lease::Setting(live.filter_map(|session| session.lease).collect());
            }
            _ => return step.lease.clone(),
        };
        match found {
            None => Lease::Nothing,
            Some(_) if !by_setting && !step.raw && !step.call.takes_lease() => Lease::Nothing,
            Some(number) if by_setting || step.raw => Lease::Setting(vec![number]),
            Some(number) => Lease::Argument(number),
        }
    }
}

fn number_in(session: Option<&Session>, number: Number) -> i64 {
    let next = session.map_or(0, |session| session.next);
    let newest = |from_newest: usize, positions: Vec<i64>| {
        positions.iter().rev().cycle().nth(from_newest).copied().unwrap_or(next)
    };
    match (number, session) {
        (Number::Is(value), _) => value,
        (Number::Next(more), _) => next + more,
        (Number::Revision(more), _) => session.map_or(0, |session| session.revision) + more,
        (_, None) => 0,
        (Number::Live(n), Some(session)) => {
            newest(n, session.history().iter().map(|live| live.item.position).collect())
        }
        (Number::Entry(n), Some(session)) => newest(n, session.log.iter().map(|entry| entry.position).collect()),
        (Number::Open, Some(session)) => session.newest_open().unwrap_or(next),
        (Number::Chunks(more), Some(session)) => {
            let chunks = session.newest_open().and_then(|open| session.deltas.get(&open));
            chunks.map_or(0, |chunks| chunks.len() as i64) + more
        }
    }
}
