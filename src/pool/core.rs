//! A pool of threads, as the engine knows it.
//!
//! What is submitted is put into the [`Inbox`], under a lock of its own, and entered into the lanes by each transition. A submission
//! that finds a worker looking for work calls none. Whether it is to call stands in the inbox: true while no worker looks and one
//! could be called. It is written here, when the lock of the pool is about to go:
//!
//! - S1. A submission puts its task into the inbox and reads `calls`, under the inbox's lock.
//! - S2. If that was true it takes the pool's lock, finds its task in the lanes, and calls.
//! - W1. A worker that falls asleep, or finds work and looks no more, writes `calls` under the inbox's lock.
//! - W2. If it writes true and finds tasks there, it enters them and calls, in the place of the submissions.
//!
//! Either S1 comes before W1: then W2 finds the task, unless it had been entered before; then the worker has seen it in the
//! lanes under the same lock. Or W1 comes before S1: then S2 calls. A worker that is awake and looks takes the pool's lock
//! once more before it sleeps.
//!
//! A worker takes several tasks at once onto its shelf only while none sleeps and no more may be started, and none sleeps before all
//! shelves are empty: what lies on a shelf is always within reach of every worker that is awake. Hence the invariant: a worker sleeps
//! => all shelves are empty, or no slot is free.

use super::apart::Apart;
use super::cell::Ran;
use super::engine::core::Entry as _;
use super::engine::core::{Engine, Kind};
use super::engine::group_limit::Membership;
use super::engine::queue::{Key as GroupKey, is_back};
use super::engine::seat::Seat;
use super::engine::state::{Acts, Counts, Next, Phase, State, TaskQueue};
use super::engine::waits::{Held, Home, Lends};
use super::entry::{Entry, Left, Unstarted};
use super::hooks::{self, drop_quietly, forget_panic};
use super::inbox::{Inbox, Tray};
use super::lanes::{Lanes, Place, Ranked};
use super::room::Pressing;
use super::spent::{Gathered, Spent};
use super::stats::PoolStats;
use super::worker::{Bench, WorkerThread};
use crate::rate::TokenBucket;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::time::{Clock, Sleep};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(super) type Spawner<'j> = dyn Fn(WorkerThread<'j>) -> io::Result<()> + Send + Sync + 'j;
pub(super) type DiscardHook = dyn Fn(Unstarted<'_>) + Send + Sync;

/// How many tasks a worker takes at once, at most, when all workers have plenty to do.
const BATCH: usize = 16;

/// How many tasks for each worker may be taken past those on a shelf. Several times as many as a worker takes at once: a
/// shelf whose worker gets on is empty by then.
const PATIENCE: u64 = 128;

/// When a thread is started again that could not be, and that tasks need.
const RETRY: Duration = Duration::from_millis(100);

pub(super) type Core<'j> = Engine<Threads<'j>>;

type Guarded<'j> = State<Entries<'j>>;
type Bound<'j> = Acts<Bench<'j>>;

pub(super) struct Threads<'j> {
    pub(super) inbox: Apart<Inbox<'j>>,
    /// A copy of the lanes' length, for what looks without the lock.
    pending: Apart<AtomicUsize>,
    pub(super) settings: Settings<'j>,
    /// The timer that lets the pool grow later, and what it wakes.
    regrow: Mutex<Option<Pin<Box<Sleep>>>>,
    regrow_waker: OnceLock<Waker>,
    /// The pool, as its tasks see it that wait. None where tasks borrow.
    lends: OnceLock<Weak<dyn Lends>>,
}

pub(super) struct Settings<'j> {
    pub(super) keep_alive: Duration,
    pub(super) growth: Option<TokenBucket>,
    pub(super) spawner: Box<Spawner<'j>>,
    pub(super) on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(super) on_discard: Option<Box<DiscardHook>>,
}

impl<'j> Threads<'j> {
    pub(super) fn new(settings: Settings<'j>) -> Self {
        Self {
            inbox: Apart::new(Inbox::new()),
            pending: Apart::new(AtomicUsize::new(0)),
            settings,
            regrow: Mutex::new(None),
            regrow_waker: OnceLock::new(),
            lends: OnceLock::new(),
        }
    }

    pub(super) fn lends(&self) -> Option<Weak<dyn Lends>> {
        self.lends.get().map(Weak::clone)
    }

    /// True when there seems to be work. A hint.
    #[inline]
    pub(super) fn seems_busy(&self) -> bool {
        // Relaxed: what acts on it takes the lock.
        !self.inbox.seems_empty() || self.pending.load(Ordering::Relaxed) > 0
    }

    /// Moves what was submitted into the lanes.
    #[inline]
    fn empty(&self, tray: &mut Tray<'j>, state: &mut Guarded<'j>) {
        tray.take_over(&mut state.queue.spent);
        if !tray.is_empty() {
            let tasks = self.inbox.empty(tray, &mut state.queue.lanes);
            state.came(tasks);
        }
    }
}

/// What is queued, and who gets to it in which order.
pub(super) struct Entries<'j> {
    pub(super) lanes: Lanes<Entry<'j>>,
    /// What starts tasks that are awaited by others, which stand in the lanes or on shelves as well.
    awaited: BTreeMap<u64, Entry<'j>>,
    next_awaited: u64,
    /// Those whose group is full, by priority, which stand nowhere else.
    aside: [BTreeMap<u64, Entry<'j>>; 3],
    next_aside: u64,
    /// Entries whose task is known to have started or ended elsewhere.
    dead: usize,
    /// How many common tasks have been taken out of the lanes, or so, and how many will have been when shelves are due.
    taken: u64,
    shelves_due: u64,
    /// What is left of tasks that have run, until it can be handed to those that submit.
    spent: Box<Spent<'j>>,
    /// Whether a submission is to call a worker, as the inbox has it.
    calls: bool,
    next_index: usize,
}

impl Default for Entries<'_> {
    fn default() -> Self {
        Self {
            lanes: Lanes::new(),
            awaited: BTreeMap::new(),
            next_awaited: 0,
            aside: Default::default(),
            next_aside: 0,
            dead: 0,
            taken: 0,
            shelves_due: u64::MAX,
            spent: Box::default(),
            calls: true,
            next_index: 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Queued(Place),
    Awaited(u64),
}

impl<'j> TaskQueue for Entries<'j> {
    type Entry = Entry<'j>;
    type Key = Key;
    type Own = Bench<'j>;
    const THREADS: bool = true;

    /// From a shelf.
    fn refill(&mut self, seats: &[Arc<Seat<Bench<'j>>>]) -> bool {
        if self.lanes.len() > 0 {
            return false;
        }
        let shelved = seats.iter().find_map(|seat| seat.own.shelf.lock().take());
        shelved.map(|entry| self.lanes.push_front(entry)).is_some()
    }

    fn seat(&mut self) -> Seat<Bench<'j>> {
        self.next_index += 1;
        Seat::new(Bench::new(self.next_index - 1))
    }

    #[inline]
    fn len(&self) -> usize {
        self.lanes.len()
    }

    #[inline]
    fn awaited_len(&self) -> usize {
        self.awaited.len()
    }

    #[inline]
    fn first(&self) -> Option<Key> {
        self.lanes.first().map(Key::Queued)
    }

    fn aside_len(&self) -> usize {
        self.aside.iter().map(BTreeMap::len).sum()
    }

    #[inline]
    fn may_have_members(&self) -> bool {
        !self.lanes.is_uniform()
    }

    fn first_awaited(&self) -> Option<Key> {
        let may_start = |entry: &Entry<'j>| entry.member().is_none_or(|member| member.may_start());
        let first = self.awaited.iter().find(|(_, entry)| may_start(entry))?;
        Some(Key::Awaited(*first.0))
    }

    #[inline]
    fn get(&self, key: Key) -> Option<&Entry<'j>> {
        match key {
            Key::Queued(place) => self.lanes.get(place),
            Key::Awaited(number) => self.awaited.get(&number),
        }
    }

    #[inline]
    fn take(&mut self, key: Key) -> Option<Entry<'j>> {
        match key {
            Key::Queued(place) => {
                self.taken += 1;
                self.lanes.take(place)
            }
            key @ Key::Awaited(_) => self.remove(key),
        }
    }

    fn remove(&mut self, key: Key) -> Option<Entry<'j>> {
        match key {
            Key::Queued(place) => self.lanes.remove(place),
            Key::Awaited(number) => self.awaited.remove(&number),
        }
    }

    fn set_aside(&mut self, key: Key) -> Option<GroupKey> {
        let entry = self.remove(key)?;
        let number = self.next_aside;
        self.next_aside += 1;
        let priority = entry.priority() as usize;
        self.aside[priority].insert(number, entry);
        Some(GroupKey::of(priority, number))
    }

    fn restore(&mut self, key: GroupKey) -> Option<Arc<Membership>> {
        let (priority, number) = key.parts();
        let entry = self.aside[priority].remove(&number)?;
        let member = entry.member().cloned();
        self.lanes.put_back(entry, is_back);
        member
    }
}

impl<'j> Kind for Threads<'j> {
    type Entry = Entry<'j>;
    type TaskQueue = Entries<'j>;

    #[inline]
    fn enter(&self, state: &mut Guarded<'j>) {
        self.empty(&mut self.inbox.lock(), state);
    }

    #[inline]
    fn settle(&self, state: &mut Guarded<'j>, acts: &mut Bound<'j>) {
        let calls = state.wants_call();
        if calls != state.queue.calls {
            let mut tray = self.inbox.lock();
            if calls && !tray.is_empty() && !seeded!("pool_calls_blindly") {
                self.empty(&mut tray, state);
                state.call(acts);
            }
            state.queue.calls = state.wants_call();
            tray.calls = state.queue.calls;
        }
        // Relaxed: a hint.
        self.pending.store(state.queue.lanes.len(), Ordering::Relaxed);
    }

    fn close(&self) {
        if !seeded!("pool_leaves_the_inbox_open") {
            self.inbox.lock().close();
        }
    }

    fn drain(&self, state: &mut Guarded<'j>) -> Vec<Entry<'j>> {
        let shelved = state
            .workers()
            .iter()
            .flat_map(|seat| seat.own.shelf.lock().drain().collect::<Vec<_>>());
        let mut entries: Vec<_> = shelved.collect();
        let aside = std::mem::take(&mut state.queue.aside)
            .into_iter()
            .flat_map(BTreeMap::into_values);
        entries.extend(state.queue.lanes.drain(aside, is_back));
        entries.extend(std::mem::take(&mut state.queue.awaited).into_values());
        entries
    }

    fn evict(&self, state: &mut Guarded<'j>) -> Option<Entry<'j>> {
        let Entries { aside, lanes, .. } = &mut state.queue;
        let lowest = lanes.lowest().map(|entry| (entry.priority() as usize, is_back(entry)));
        let aside = aside.iter_mut().enumerate().find(|(_, aside)| !aside.is_empty());
        if let Some((priority, aside)) = aside
            && lowest.is_none_or(|(lowest, is_back)| (priority, is_back) <= (lowest, false))
        {
            return aside.pop_first().map(|(_, entry)| entry);
        }
        let queued = state.queue.lanes.evict();
        queued.or_else(|| state.workers().iter().find_map(|seat| seat.own.shelf.lock().take()))
    }

    fn discard(core: &Arc<Core<'j>>, entry: Entry<'j>) {
        if !entry.set_aside() {
            return drop_quietly(entry);
        }
        core.look().stats.discarded += 1;
        hooks::discard(core.kind.settings.on_discard.as_deref(), Unstarted::new(entry, true));
    }

    #[inline]
    fn starts(entry: &mut Entry<'j>, _: &Seat<Bench<'j>>) {
        entry.claim();
    }

    fn start(core: &Arc<Core<'j>>, seat: Arc<Seat<Bench<'j>>>) {
        let _ = core.spawn(seat);
    }

    #[cold]
    fn grow(core: &Arc<Core<'j>>) {
        if let Some(growth) = &core.kind.settings.growth {
            let (wants, is_urgent) = core.transition(|state, _| (state.wants_thread(), state.is_urgent()));
            if !wants {
                return;
            }
            if !is_urgent && let Err(refusal) = growth.try_acquire(1) {
                if let Some(after) = refusal.retry_after() {
                    core.grow_later(after);
                }
                return;
            }
        }
        core.transition(|state, acts| {
            if state.wants_thread() {
                let seat = Arc::new(state.queue.seat());
                state.starts(seat, acts);
            }
        });
    }
}

impl<'j> Home for Core<'j> {
    /// None: it is not queued.
    type Target = Option<Entry<'j>>;
    type Awaited = Option<u64>;

    fn held(&self) -> Held {
        self.held()
    }

    fn await_it(self: &Arc<Self>, entry: Option<Entry<'j>>) -> Option<u64> {
        let mut entry = Some(entry?);
        let number = self.transition(|state, acts| {
            // One that has ended meanwhile needs no thread.
            if state.phase == Phase::Stopped || !entry.as_ref()?.is_live() {
                return None;
            }
            let number = state.queue.next_awaited;
            state.queue.next_awaited += 1;
            state.queue.awaited.insert(number, entry.take()?);
            // It counts as one more: it may run while the other is taken out.
            state.quiet.begun(1);
            state.call(acts);
            Some(number)
        });
        drop(entry);
        number
    }

    fn await_no_more(self: &Arc<Self>, awaited: Option<u64>) {
        let Some(number) = awaited else { return };
        let entry = self.transition(|state, acts| {
            let entry = state.queue.awaited.remove(&number)?;
            state.finished(1, acts);
            state.call(acts);
            Some(entry)
        });
        drop(entry);
    }
}

/// What only this kind of pool does.
impl<'j> Core<'j> {
    // ---- the queue ----

    /// Queues a task for which room has been taken. Hands it back when no more are taken. `into` only converts.
    #[inline]
    pub(super) fn push<J>(self: &Arc<Self>, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<(), J> {
        let put = self.kind.inbox.put(job, into)?;
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
        let Some(put) = self.kind.inbox.put_all(jobs, n, into, buffer) else {
            return false;
        };
        if put.calls {
            self.call();
        }
        buffer.clear();
        true
    }

    /// For a submission that is to call.
    #[cold]
    pub(super) fn call(self: &Arc<Self>) {
        self.transition(State::call);
    }

    /// For a submission that finds no room, or waits for it: workers give back what they owe, and owe nothing meanwhile.
    pub(super) fn press(&self) -> Pressing<'_> {
        let pressing = self.room.press();
        let owed = {
            let state = self.look();
            state.workers().iter().map(|seat| seat.own.shelf.lock().owed()).sum()
        };
        self.room.give_back(owed, 0);
        pressing
    }

    /// Gives back the places that the worker owes.
    pub(super) fn pay(&self, bench: &Bench<'j>) {
        let owed = bench.shelf.lock().owed();
        self.room.give_back(owed, 0);
    }

    /// A queued task has started or ended without being taken out. Such are taken out when they are in the majority, or room is short.
    pub(super) fn note_dead(self: &Arc<Self>, note: impl FnOnce(&mut Guarded<'j>)) {
        let dead = self.transition(|state, acts| {
            state.queue.dead += 1;
            note(state);
            let (dead, all) = (state.queue.dead, state.queue.lanes.len() + state.queue.aside_len());
            let many = dead * 2 > all || self.room.is_short() && self.room.is_helped_by(dead);
            let dead = take_dead(state, acts, many);
            // Another is first, where it was, or has its place in its group.
            state.call_asker(acts);
            state.call(acts);
            dead
        });
        self.bury(dead);
    }

    /// A task was run inside of one that waited for it.
    pub(super) fn note_inlined(self: &Arc<Self>, ran: Ran) {
        if ran != Ran::Gone {
            self.note_dead(|state| {
                state.stats.finished += 1;
                state.stats.panicked += u64::from(ran == Ran::Panicked);
            });
        }
    }

    /// For a submission that finds no room: what is known to be dead is taken out, wherever it lies.
    pub(super) fn sweep(self: &Arc<Self>) {
        let dead = self.transition(|state, acts| {
            let any = self.room.is_helped_by(state.queue.dead) && !seeded!("pool_full_of_dead");
            let dead = take_dead(state, acts, any);
            state.call(acts);
            dead
        });
        self.bury(dead);
    }

    fn bury(&self, dead: Vec<Entry<'j>>) {
        for entry in dead {
            self.give_back(&entry);
            drop_quietly(entry);
        }
    }

    /// Puts what the worker has not started back in front of the queue, and gives back the places that it owes.
    pub(super) fn unshelve(self: &Arc<Self>, bench: &Bench<'j>) {
        self.transition(|state, _| bench.shelf.lock().put_back(&mut state.queue.lanes));
        self.pay(bench);
    }

    /// Takes out everything that has not started and is to be handed back, and starts nothing more.
    pub(super) fn unstarted(self: &Arc<Self>) -> Vec<Entry<'j>> {
        let mut unstarted = self.stop();
        // Tasks that were cancelled or run elsewhere are not handed back.
        unstarted.retain(|entry| match seeded!("pool_runs_what_is_listed") {
            true => !entry.is_awaited() && entry.is_live(),
            false => entry.set_aside(),
        });
        unstarted
    }

    // ---- workers ----

    /// What the worker does next, after it has ended tasks, and the slot is free again that it had, lent or not.
    pub(super) fn take(
        self: &Arc<Self>,
        seat: &Arc<Seat<Bench<'j>>>,
        told: &mut Told<'j>,
        slot: Option<bool>,
        patient: bool,
    ) -> Next<Entry<'j>> {
        self.pay(&seat.own);
        let Told { counts, spent, member } = told;
        let is_gated = self.settings.admission.is_gated();
        self.next(
            seat,
            std::mem::take(counts),
            slot,
            patient,
            |state| {
                if let Some(member) = member.take() {
                    state.member_ended(&member);
                }
                seat.own.note_untold(0);
                state.queue.spent.take_over(spent);
                if state.queue.taken >= state.queue.shelves_due {
                    clear_shelves(state);
                }
            },
            |state, next| {
                let is_common = matches!(next, Next::Run(entry, false) if entry.is_common());
                if is_common && !is_gated && state.queue.lanes.is_uniform() && state.is_busy() {
                    let share = state.queue.lanes.len() / (2 * state.staying().max(1));
                    if share > 0 {
                        load(state, &seat.own, share.min(BATCH - 1));
                    }
                }
            },
        )
    }

    /// A worker has gone, or was not started.
    pub(super) fn left_by(
        self: &Arc<Self>,
        seat: &Arc<Seat<Bench<'j>>>,
        told: &mut Told<'j>,
        slot: Option<bool>,
        in_order: bool,
    ) {
        self.pay(&seat.own);
        let Told { counts, spent, .. } = told;
        self.transition(|state, _| {
            seat.own.shelf.lock().put_back(&mut state.queue.lanes);
            state.queue.spent.take_over(spent);
            seat.own.note_untold(0);
        });
        self.left(seat, std::mem::take(counts), slot, None, in_order);
    }

    fn spawn(self: &Arc<Self>, seat: Arc<Seat<Bench<'j>>>) -> io::Result<()> {
        let worker = WorkerThread::new(Arc::clone(self), seat);
        // The hook is a user's, and what starts a thread may have tasks in hand.
        let started = catch_unwind(AssertUnwindSafe(|| (self.kind.settings.spawner)(worker)));
        started.unwrap_or_else(|payload| {
            forget_panic(Err(payload));
            Err(io::Error::other("what starts threads has panicked"))
        })
    }

    /// A worker was not started. The next submission tries again, and so does a timer, where tasks wait that no submission helps.
    pub(super) fn never_started(self: &Arc<Self>, seat: &Arc<Seat<Bench<'j>>>) {
        self.left_by(seat, &mut Told::default(), None, false);
        let wants = self.transition(|state, _| {
            state.stats.failed_starts += 1;
            state.wants_thread()
        });
        if wants {
            self.wake_later(&Clock::real(), RETRY);
        }
    }

    /// Starts the threads that are always there.
    pub(super) fn start_least(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let seat = self.transition(|state, _| {
                let wants = state.staying() < state.least && state.phase == Phase::Running;
                wants.then(|| {
                    let seat = Arc::new(state.queue.seat());
                    state.enters(&seat);
                    seat
                })
            });
            match seat {
                Some(seat) => self.spawn(seat)?,
                None => return Ok(()),
            }
        }
    }

    pub(super) fn set_workers(self: &Arc<Self>, least: usize, most: usize) -> io::Result<()> {
        self.transition(|state, _| {
            state.least = least;
            // What lies on shelves is within reach of those that are about to be started, too.
            for seat in state.workers().to_vec() {
                seat.own.shelf.lock().put_back(&mut state.queue.lanes);
            }
        });
        self.resize(most);
        self.start_least()
    }

    fn grow_later(self: &Arc<Self>, after: Duration) {
        // A pool whose tasks borrow has no such waker: there, submissions and workers try again.
        if self.kind.regrow_waker.get().is_some() {
            self.look().grows_later = true;
            self.wake_later(&self.settings.clock, after);
        }
    }

    fn wake_later(self: &Arc<Self>, clock: &Clock, after: Duration) {
        let Some(waker) = self.kind.regrow_waker.get() else {
            return;
        };
        let mut regrow = self.kind.regrow.lock();
        if regrow.is_some() {
            return;
        }
        let mut sleep = Box::pin(Sleep::of_no_runtime(clock, clock.after(clock.now(), after)));
        match sleep.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => *regrow = Some(sleep),
            Poll::Ready(()) => {
                drop(regrow);
                waker.wake_by_ref();
            }
        }
    }

    pub(super) fn numbers(self: &Arc<Self>) -> PoolStats {
        let limit = self.limit();
        self.transition(|state, _| {
            let workers = state.workers();
            let shelved: usize = workers.iter().map(|seat| seat.own.shelf.lock().len()).sum();
            let untold: usize = workers.iter().map(|seat| seat.own.untold()).sum();
            let twice = state.queue.awaited.len();
            let stats = state.stats(limit);
            PoolStats {
                queued: stats.queued + shelved,
                unfinished: stats.unfinished - untold - twice,
                ..stats
            }
        })
    }
}

impl Core<'static> {
    /// What wakes the pool, or calls it for its tasks, does not keep it.
    pub(super) fn know_itself(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let _ = self
            .kind
            .regrow_waker
            .set(Waker::from(Arc::new(Regrow(Weak::clone(&weak)))));
        let _ = self.kind.lends.set(weak);
    }
}

/// What the timer of a pool that grows later wakes.
struct Regrow(Weak<Core<'static>>);

impl Wake for Regrow {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            let fired = core.kind.regrow.lock().take();
            drop(fired);
            core.look().grows_later = false;
            core.call();
            // It may be the last to have it, and the timer has nothing to do with what a pool holds.
            drop_quietly(core);
        }
    }
}

fn take_dead<'j>(state: &mut Guarded<'j>, acts: &mut Bound<'j>, all: bool) -> Vec<Entry<'j>> {
    if !all {
        return Vec::new();
    }
    state.queue.dead = 0;
    let mut dead = state.queue.lanes.purge();
    for seat in state.workers() {
        seat.own.shelf.lock().purge(&mut dead);
    }
    for aside in &mut state.queue.aside {
        let gone = aside.iter().filter(|(_, entry)| !entry.is_live());
        let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
        dead.extend(gone.iter().filter_map(|number| aside.remove(number)));
    }
    dead.iter().for_each(|entry| state.entry_left(entry));
    state.finished(dead.len(), acts);
    dead
}

/// Moves `n` of the tasks that are next to the shelf of a worker.
fn load<'j>(state: &mut Guarded<'j>, bench: &Bench<'j>, n: usize) {
    state.queue.taken += n as u64;
    let due = state.queue.taken + PATIENCE * state.staying() as u64;
    state.queue.shelves_due = state.queue.shelves_due.min(due);
    bench.shelf.lock().load(n, due, &mut state.queue.lanes);
}

/// Some tasks may have been passed too often on a shelf: those go back in front of the
/// queue, first those that have been taken last.
#[cold]
fn clear_shelves(state: &mut Guarded<'_>) {
    let (mut late, mut due_next) = (Vec::new(), u64::MAX);
    for seat in state.workers() {
        match seat.own.shelf.lock().due() {
            Some(due) if due <= state.queue.taken && !seeded!("pool_overlooks_shelves") => {
                late.push((due, Arc::clone(seat)));
            }
            Some(due) => due_next = due_next.min(due),
            None => {}
        }
    }
    late.sort_by_key(|(due, _)| Reverse(*due));
    for (_, seat) in late {
        seat.own.shelf.lock().put_back(&mut state.queue.lanes);
    }
    state.queue.shelves_due = due_next;
}

/// What a worker has done since it last told.
#[derive(Default)]
pub(super) struct Told<'j> {
    pub(super) counts: Counts,
    /// What is left of it.
    pub(super) spent: Gathered<'j>,
    /// The task that it has run, where its group has a limit.
    pub(super) member: Option<Arc<Membership>>,
}
