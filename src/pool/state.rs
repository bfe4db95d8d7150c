//! What the lock of a pool guards: the queue, who sleeps, who looks, and the counts. Plain data; whatever must happen
//! after the lock is collected in [`After`], and done by `locked.rs`.

use super::cell::Ran;
use super::entry::Entry;
use super::inbox::{Inbox, Tray};
use super::lanes::Lanes;
use super::quiet::Quiet;
use super::slot_watch::SlotWatch;
use super::spent::{Gathered, Spent};
use super::stats::PoolStats;
use super::worker::Bench;
use std::cmp::Reverse;
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;

/// So many tasks for each worker may be taken past those on a shelf. Several times as many as a worker takes at once: a
/// shelf whose worker gets on is empty by then.
const PATIENCE: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Running,
    /// No more tasks are taken; what is queued still runs.
    Draining,
    /// What was queued has been taken out: nothing more starts.
    Stopped,
}

pub(super) struct State<'j> {
    pub(super) lanes: Lanes<Entry<'j>>,
    pub(super) benches: Vec<Arc<Bench<'j>>>,
    pub(super) sleepers: Vec<Arc<Bench<'j>>>,
    /// Workers that are awake and look for work, or have been woken to look.
    pub(super) searching: usize,
    /// Threads, those that are being started included.
    pub(super) alive: usize,
    /// Those of them that are about to leave: two must not leave in one's place.
    pub(super) leaving: usize,
    pub(super) least: usize,
    pub(super) most: usize,
    pub(super) phase: Phase,
    pub(super) quiet: Quiet,
    /// Queue entries whose task is known to have ended elsewhere.
    pub(super) dead: usize,
    /// A timer lets the pool grow later: until then nobody need try.
    pub(super) grows_later: bool,
    /// There while it would start a worker, but for a slot.
    pub(super) slot_watch: SlotWatch,
    /// How many common tasks have been taken out of the lanes, or so, and how many will have been when shelves are due.
    pub(super) taken: u64,
    pub(super) shelves_due: u64,
    pub(super) next_index: usize,
    /// What is left of tasks that have run, until it can be handed to those who submit.
    spent: Box<Spent<'j>>,
    /// Whether a submission is to call somebody, as the inbox has it.
    pub(super) calls: bool,
    pub(super) after: After<'j>,
    pub(super) stats: PoolStats,
}

/// What a worker finds when it looks for work.
pub(super) enum Found<'j> {
    Entry(Entry<'j>),
    /// One that is to be admitted first lies where it can be taken out.
    Held,
    Nothing,
    /// This worker is to end.
    Exit,
}

/// What must be done after the lock: nobody is woken, and no thread started, under it.
#[must_use]
#[derive(Default)]
pub(super) struct After<'j> {
    pub(super) wake: Option<Arc<Bench<'j>>>,
    pub(super) grow: bool,
    pub(super) quiet: Vec<Waker>,
}

impl<'j> State<'j> {
    pub(super) fn new(least: usize, most: usize, slot_watch: SlotWatch) -> Self {
        Self {
            lanes: Lanes::new(),
            benches: Vec::new(),
            sleepers: Vec::new(),
            searching: 0,
            alive: 0,
            leaving: 0,
            least,
            most,
            phase: Phase::Running,
            quiet: Quiet::default(),
            dead: 0,
            grows_later: false,
            slot_watch,
            taken: 0,
            shelves_due: u64::MAX,
            next_index: 0,
            spent: Box::default(),
            calls: true,
            after: After::default(),
            stats: PoolStats::default(),
        }
    }

    /// Threads that there are and will be.
    pub(super) fn staying(&self) -> usize {
        self.alive - self.leaving
    }

    /// Whom to wake for the work that is queued, if anybody.
    #[inline]
    pub(super) fn call_for_help(&mut self) {
        if self.searching > 0 || self.lanes.len() == 0 {
            return;
        }
        match self.sleepers.pop() {
            Some(bench) => {
                self.searching += 1;
                debug_assert!(self.after.wake.is_none(), "one looks for all that come");
                self.after.wake = Some(bench);
            }
            None => self.after.grow = self.may_grow(),
        }
    }

    fn may_grow(&self) -> bool {
        self.staying() < self.most && !self.grows_later
    }

    /// True when somebody is to be called for the next task.
    #[inline]
    pub(super) fn wants_call(&self) -> bool {
        self.searching == 0 && (!self.sleepers.is_empty() || self.may_grow())
    }

    /// Moves what was submitted into the lanes.
    #[inline]
    pub(super) fn enter(&mut self, inbox: &Inbox<'j>, tray: &mut Tray<'j>) {
        tray.take_over(&mut self.spent);
        if tray.is_empty() {
            return;
        }
        let tasks = inbox.empty(tray, &mut self.lanes);
        self.quiet.begun(tasks);
        self.stats.submitted += tasks as u64;
    }

    pub(super) fn finished(&mut self, tasks: usize) {
        self.quiet.finished(tasks, &mut self.after.quiet);
    }

    pub(super) fn strike_off(&mut self, me: &Arc<Bench<'j>>, searching: bool) {
        self.searching -= usize::from(searching);
        self.alive -= 1;
        self.benches.retain(|bench| !Arc::ptr_eq(bench, me));
        if self.alive == 0 {
            self.quiet.tell(&mut self.after.quiet);
        }
    }

    pub(super) fn shelves_are_empty(&self) -> bool {
        self.benches.iter().all(|bench| bench.shelf.lock().is_empty())
    }

    /// Moves `n` of the tasks that are next to the shelf of `me`.
    pub(super) fn load(&mut self, me: &Bench<'j>, n: usize) {
        self.taken += n as u64;
        let due = self.taken + PATIENCE * self.staying() as u64;
        self.shelves_due = self.shelves_due.min(due);
        me.shelf.lock().load(n, due, &mut self.lanes);
    }

    /// So many tasks have been taken that some may have been passed too often on a shelf: those go back in front of the
    /// queue, first those that have been taken last.
    #[cold]
    pub(super) fn clear_shelves(&mut self) {
        let (mut late, mut due_next) = (Vec::new(), u64::MAX);
        for bench in &self.benches {
            match bench.shelf.lock().due() {
                Some(due) if due <= self.taken && !seeded!("pool_overlooks_shelves") => late.push((due, bench)),
                Some(due) => due_next = due_next.min(due),
                None => {}
            }
        }
        late.sort_by_key(|(due, _)| Reverse(*due));
        for (_, bench) in late {
            bench.shelf.lock().put_back(&mut self.lanes);
        }
        self.shelves_due = due_next;
    }

    /// What workers have ended and not told yet.
    pub(super) fn untold(&self) -> usize {
        self.benches.iter().map(|bench| bench.untold()).sum()
    }
}

/// What a worker has done since it last told.
#[derive(Default)]
pub(super) struct Told<'j> {
    /// Queue entries.
    pub(super) entries: usize,
    pub(super) finished: u64,
    pub(super) panicked: u64,
    pub(super) expired: u64,
    pub(super) refused: u64,
    /// What is left of them.
    pub(super) spent: Gathered<'j>,
}

impl<'j> Told<'j> {
    #[inline]
    pub(super) fn count(&mut self, ran: Ran) {
        self.entries += 1;
        self.finished += u64::from(ran != Ran::Gone);
        self.panicked += u64::from(ran == Ran::Panicked);
    }

    pub(super) fn tell(&mut self, state: &mut State<'j>) {
        let stats = &mut state.stats;
        stats.finished += take(&mut self.finished);
        stats.panicked += take(&mut self.panicked);
        stats.expired += take(&mut self.expired);
        stats.refused += take(&mut self.refused);
        state.spent.take_over(&mut self.spent);
        state.finished(take(&mut self.entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::wishes::Spec;
    use crate::semaphore::Semaphore;
    use std::sync::Mutex;

    /// Given two shelves with three tasks each, one loaded after the other. When so many have been taken that the first is due,
    /// then its tasks are next, in order; those of the second are when it is due; and where both are, the older ones come first.
    #[test]
    fn shelves_that_are_due_are_next_in_order() {
        for at_once in [false, true] {
            let ran = Mutex::new(Vec::new());
            let next = |state: &mut State<'_>, n: usize| {
                (0..n).for_each(|_| _ = state.lanes.pop().map(|entry| entry.run(|_| ())));
                std::mem::take(&mut *ran.lock().unwrap())
            };
            let mut state = State::new(2, 2, SlotWatch::of(&Arc::new(Semaphore::new(2))));
            state.alive = 2;
            state.benches = (0..2).map(|index| Arc::new(Bench::new(index, false))).collect();
            for n in 0..10 {
                let ran = &ran;
                state.lanes.push(Entry::own(
                    Caller::current(),
                    move || ran.lock().unwrap().push(n),
                    &Spec::DEFAULT,
                ));
            }
            for bench in state.benches.clone() {
                state.load(&bench, 3);
            }
            assert_eq!(state.shelves_due, 3 + 2 * PATIENCE);
            if at_once {
                state.taken = 6 + 2 * PATIENCE;
                state.clear_shelves();
                assert_eq!(next(&mut state, 7), [0, 1, 2, 3, 4, 5, 6]);
            } else {
                state.taken = state.shelves_due;
                state.clear_shelves();
                assert_eq!(next(&mut state, 4), [0, 1, 2, 6]);
                assert_eq!(state.shelves_due, 6 + 2 * PATIENCE);
                state.taken = state.shelves_due;
                state.clear_shelves();
                assert_eq!(next(&mut state, 4), [3, 4, 5, 7]);
            }
            assert_eq!(state.shelves_due, u64::MAX);
            assert!(state.shelves_are_empty());
        }
    }
}
