//! How tasks come into a pool's queue, and leave it without a worker.

use super::cell::{Queued, Ran};
use super::core::Core;
use super::entry::{Entry, Left};
use super::error::TaskError;
use super::hooks::drop_quietly;
use super::lanes::Ranked;
use super::room::Pressing;
use super::state::{State, Told};
use super::stats::PoolStats;
use super::worker::Bench;
use std::sync::Arc;

impl<'j> Core<'j> {
    /// Queues a task for which room has been taken. Hands it back when no more are taken. `into` only converts.
    #[inline]
    pub(super) fn push<J>(self: &Arc<Self>, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<(), J> {
        let put = self.inbox.put(job, into)?;
        if put.calls {
            self.call();
        }
        drop(put.spent);
        Ok(())
    }

    /// Queues the first `n` of `jobs` at once, in order. False, and nothing is taken, when no more are. `into` only
    /// converts; `buffer` is empty, before and after.
    pub(super) fn push_all<J>(
        self: &Arc<Self>,
        jobs: &mut Vec<J>,
        n: usize,
        into: impl Fn(J) -> Entry<'j>,
        buffer: &mut Vec<Left<'j>>,
    ) -> bool {
        let Some(put) = self.inbox.put_all(jobs, n, into, buffer) else {
            return false;
        };
        if put.calls {
            self.call();
        }
        buffer.clear();
        true
    }

    /// For whoever finds no room, or waits for it: workers give back what they owe, and owe nothing meanwhile.
    pub(super) fn press(&self) -> Pressing<'_> {
        let pressing = self.room.press();
        let owed = {
            let state = self.state.lock();
            state.benches.iter().map(|bench| bench.shelf.lock().owed()).sum()
        };
        self.room.give_back(owed, 0);
        pressing
    }

    pub(super) fn evict(self: &Arc<Self>) -> Option<Entry<'j>> {
        let mut state = self.lock();
        let mut at_gate = None;
        let entry = state.lanes.evict().or_else(|| {
            let mut benches = state.benches.iter();
            benches.find_map(|bench| {
                let held = bench.held.lock().take();
                at_gate = held.is_some().then(|| Arc::clone(bench));
                held.or_else(|| bench.shelf.lock().take())
            })
        })?;
        state.finished(1);
        drop(state);
        // Its worker need not wait for the admission any longer.
        if let Some(bench) = at_gate {
            bench.unpark();
        }
        self.room.give_back(1, u64::from(entry.weight()));
        Some(entry)
    }

    /// A queued task is claimed by somebody who is no worker of this pool: it runs there, and counts. False when somebody
    /// else has it, be it the owner of a report.
    pub(super) fn let_guest_in(self: &Arc<Self>, task: &(impl Queued + ?Sized)) -> bool {
        {
            let mut state = self.lock();
            // Under this lock: what is seen to be claimed has been counted.
            if !task.set_aside() {
                return false;
            }
            state.quiet.begun(1);
        }
        self.note_dead(&Counted::Started);
        true
    }

    pub(super) fn guest_ended(self: &Arc<Self>, ran: Ran) {
        let mut told = Told::default();
        told.count(ran);
        told.tell(&mut self.lock());
    }

    /// Somebody has started or ended a queued task without taking it out. One that a worker holds at the gate is let go at
    /// once; others are taken out when such are in the majority, or room is short.
    pub(super) fn note_dead(self: &Arc<Self>, counted: &Counted) {
        let (dead, at_gate) = {
            let mut state = self.lock();
            state.dead += 1;
            counted.count(&mut state.stats);
            let many = state.dead * 2 > state.lanes.len() || self.room.is_short() && self.room.is_helped_by(state.dead);
            self.take_dead(&mut state, many)
        };
        self.bury(dead, at_gate);
    }

    /// For whoever finds no room: what is known to be dead is taken out, wherever it lies.
    pub(super) fn sweep(self: &Arc<Self>) {
        let (dead, at_gate) = {
            let mut state = self.lock();
            let any = self.room.is_helped_by(state.dead) && !seeded!("pool_full_of_dead");
            self.take_dead(&mut state, any)
        };
        self.bury(dead, at_gate);
    }

    /// What is dead at the gate, and whose it was; and all the rest, if wanted.
    fn take_dead(&self, state: &mut State<'j>, all: bool) -> (Vec<Entry<'j>>, Vec<Arc<Bench<'j>>>) {
        let (mut dead, mut at_gate) = (Vec::new(), Vec::new());
        if self.settings.gate.is_some() && !seeded!("pool_holds_dead_at_the_gate") {
            for bench in &state.benches {
                if let Some(entry) = bench.held.lock().take_if(|entry| !entry.is_live()) {
                    dead.push(entry);
                    at_gate.push(Arc::clone(bench));
                }
            }
        }
        if all {
            state.dead = 0;
            dead.extend(state.lanes.purge());
            for bench in &state.benches {
                bench.shelf.lock().purge(&mut dead);
            }
        }
        state.finished(dead.len());
        (dead, at_gate)
    }

    fn bury(&self, dead: Vec<Entry<'j>>, at_gate: Vec<Arc<Bench<'j>>>) {
        self.room
            .give_back(dead.len(), dead.iter().map(|entry| u64::from(entry.weight())).sum());
        for bench in at_gate {
            bench.unpark();
        }
        for entry in dead {
            drop_quietly(entry);
        }
    }
}

/// As what a task counts that was claimed where it stood.
pub(super) enum Counted {
    Started,
    Cancelled,
    Expired,
    Refused,
}

impl Counted {
    pub(super) fn of(why: &TaskError) -> Self {
        match why {
            TaskError::Expired => Self::Expired,
            TaskError::Refused(_) => Self::Refused,
            _ => Self::Cancelled,
        }
    }

    pub(super) fn count(&self, stats: &mut PoolStats) {
        match self {
            Self::Started | Self::Cancelled => {}
            Self::Expired => stats.expired += 1,
            Self::Refused => stats.refused += 1,
        }
    }
}
