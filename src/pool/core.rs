//! What all handles and workers of a pool share.
//!
//! Everything but what has just been submitted is under one lock, so that the protocol is short. It is held for a handful
//! of moves; tasks, hooks, wakers and drops of tasks run outside it.
//!
//! - A task that is submitted wakes a sleeper only when nobody looks for work already: whoever looks takes the lock once
//!   more before it sleeps, and sees the task there. The steps are in `locked.rs`.
//! - Whoever finds work and leaves some behind wakes the next, when nobody looks any more.
//! - A worker takes several at once onto its shelf only while nobody sleeps and no more workers may be started, and
//!   nobody sleeps before all shelves are empty: what lies on a shelf is always within reach of everybody who is awake.
//!   Hence the invariant: somebody sleeps => all shelves are empty.

use super::apart::Apart;
use super::entry::{Entry, Unstarted};
use super::gate::Gate;
use super::hooks::{self, PanicHook, Payload, drop_quietly};
use super::inbox::Inbox;
use super::kin::Kin;
use super::overflow::{Crowded, Overflow};
use super::park::Parker;
use super::room::Room;
use super::slot_watch::SlotWatch;
use super::state::State;
use super::stats::PoolStats;
use super::worker::{Bench, WorkerThread};
use crate::rate::TokenBucket;
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::time::{Clock, Sleep};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

pub(super) type Spawner<'j> = dyn Fn(WorkerThread<'j>) -> io::Result<()> + Send + Sync + 'j;
pub(super) type DiscardHook = dyn Fn(Unstarted<'_>) + Send + Sync;

/// What is decided when a pool is built.
pub(super) struct Settings<'j> {
    pub(super) clock: Clock,
    pub(super) keep_alive: Duration,
    pub(super) growth: Option<TokenBucket>,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) spawner: Box<Spawner<'j>>,
    pub(super) on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(super) on_panic: Option<Box<PanicHook>>,
    pub(super) on_discard: Option<Box<DiscardHook>>,
    pub(super) overflow: Overflow,
    pub(super) slots: Arc<Semaphore>,
    /// True when others hold permits of the slots as well.
    pub(super) shared_slots: bool,
}

pub(super) struct Core<'j> {
    pub(super) kin: Kin,
    pub(super) state: Apart<Mutex<State<'j>>>,
    pub(super) inbox: Apart<Inbox<'j>>,
    pub(super) room: Room,
    /// A copy of the lanes' length, for whoever looks without the lock.
    pending: Apart<AtomicUsize>,
    pub(super) settings: Settings<'j>,
    /// The timer that lets the pool grow later, and who it wakes.
    pub(super) regrow: Mutex<Option<Pin<Box<Sleep>>>>,
    pub(super) regrow_waker: OnceLock<Waker>,
    /// Who is woken by slots that are free. None where tasks borrow.
    pub(super) slots_waker: OnceLock<Waker>,
}

impl<'j> Core<'j> {
    pub(super) fn new(kin: Kin, workers: (usize, usize), room: Room, settings: Settings<'j>) -> Self {
        let slot_watch = SlotWatch::of(&settings.slots);
        Self {
            kin,
            state: Apart::new(Mutex::new(State::new(workers.0, workers.1, slot_watch))),
            inbox: Apart::new(Inbox::new()),
            room,
            pending: Apart::new(AtomicUsize::new(0)),
            settings,
            regrow: Mutex::new(None),
            regrow_waker: OnceLock::new(),
            slots_waker: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn note_pending(&self, state: &State<'j>) {
        // Relaxed: a hint. Whoever acts on it takes the lock.
        self.pending.store(state.lanes.len(), Ordering::Relaxed);
    }

    /// True when there seems to be work. A hint.
    #[inline]
    pub(super) fn seems_busy(&self) -> bool {
        !self.inbox.seems_empty() || self.pending.load(Ordering::Relaxed) > 0
    }

    pub(super) fn orphan(&self, payload: Payload) {
        hooks::tell_of_panic(self.settings.on_panic.as_deref(), payload);
    }

    // ---- numbers ----

    pub(super) fn stats(self: &Arc<Self>) -> PoolStats {
        let state = self.lock();
        let shelved: usize = state.benches.iter().map(|bench| bench.shelf.lock().len()).sum();
        PoolStats {
            threads: state.alive,
            idle: state.sleepers.len(),
            limit: self.settings.slots.limit(),
            queued: state.lanes.len() + shelved,
            unfinished: state.quiet.unfinished() - state.untold(),
            ..state.stats
        }
    }
}

impl<'j> Crowded for Arc<Core<'j>> {
    type Entry = Entry<'j>;

    fn room(&self) -> &Room {
        &self.room
    }

    fn overflow(&self) -> Overflow {
        self.settings.overflow
    }

    fn evict(&self) -> Option<Entry<'j>> {
        Core::evict(self)
    }

    fn discard(&self, entry: Entry<'j>) {
        if !entry.set_aside() {
            return drop_quietly(entry);
        }
        self.lock().stats.discarded += 1;
        hooks::discard(self.settings.on_discard.as_deref(), Unstarted::new(entry, true));
    }
}

/// Everything that a parked worker is woken by.
impl Bench<'_> {
    pub(super) fn call(&self) {
        self.mark_called();
        self.unpark();
    }

    pub(super) fn unpark(&self) {
        if let Some(parker) = self.parker.get() {
            Parker::unpark(parker);
        }
    }
}
