//! What the lock of a pool guards: the queue, the slots, and the workers. Each transition is plain data; what is to be done after
//! the lock comes back in [`Acts`].
//!
//! - A worker that is called looks for a task. As many look as tasks can start: one that was called may stand behind a task that
//!   keeps its runtime's thread. Of threads one looks at a time, and calls the next when it has found a task.
//! - A worker falls asleep under the lock, after it has found nothing there that can start. So a transition either comes before,
//!   and the worker sees what it made startable, or after, and calls it.
//! - Where tasks are admitted by a policy, or by slots that others share, one worker at a time asks, for the task that is first. The
//!   task stays in the queue meanwhile. Whatever changes which one is first calls the asker.

use super::core::Entry;
use super::group_limit::Membership;
use super::queue::Key as GroupKey;
use super::seat::Seat;
use super::slots::Slots;
use crate::pool::cell::Ran;
use crate::pool::quiet::Quiet;
use crate::pool::stats::PoolStats;
use std::sync::Arc;
use std::task::Waker;

/// How many threads there may be beyond the limit, for tasks that are awaited while others wait.
pub(in crate::pool) const SPARES: usize = 256;

/// How many tasks that will not start are taken out in one transition.
const GONE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pool) enum Phase {
    Running,
    /// No more tasks are taken; what is queued still runs.
    Draining,
    /// What was queued has been taken out: nothing more starts.
    Stopped,
}

/// Why an entry will not start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Gone {
    /// It has started elsewhere, or ended.
    Dead,
    Late,
}

/// A queue, in the order of which tasks start.
pub(in crate::pool) trait TaskQueue: Send {
    type Entry: Entry;
    /// Of an entry: it stays valid after the entry is gone, and then finds nothing.
    type Key: Copy + PartialEq + Send;
    /// What a worker keeps where others find it.
    type Own: Send + Sync;
    /// Workers are threads: dear to start, and called one by one.
    const THREADS: bool;
    /// Moves something into the empty queue from elsewhere. False when there is nothing.
    fn refill(&mut self, _: &[Arc<Seat<Self::Own>>]) -> bool {
        false
    }
    /// For one more worker.
    fn seat(&mut self) -> Seat<Self::Own>;

    fn len(&self) -> usize;
    /// How many tasks are awaited by tasks.
    fn awaited_len(&self) -> usize;
    /// How many are set aside, and not counted by `len`: their group is full.
    fn aside_len(&self) -> usize;
    /// False when no entry in order is of a group with a limit. It may be true all the same.
    fn may_have_members(&self) -> bool;
    fn first(&self) -> Option<Self::Key>;
    /// Of the awaited entries that may start, the one that has been awaited for longest.
    fn first_awaited(&self) -> Option<Self::Key>;
    fn get(&self, key: Self::Key) -> Option<&Self::Entry>;
    /// Takes an entry out to start it: the order by priority counts it.
    fn take(&mut self, key: Self::Key) -> Option<Self::Entry>;
    fn remove(&mut self, key: Self::Key) -> Option<Self::Entry>;
    /// Takes an entry out of the order, and keeps it.
    fn set_aside(&mut self, key: Self::Key) -> Option<GroupKey>;
    /// Puts an entry that was set aside before all others of its priority, but those that came back before it and have not started. None
    /// when it has left.
    fn restore(&mut self, key: GroupKey) -> Option<Arc<Membership>>;
}

/// The worker that asks, and for which entry.
type Asker<Q> = (Arc<Seat<<Q as TaskQueue>::Own>>, Option<<Q as TaskQueue>::Key>);

pub(in crate::pool) struct State<Q: TaskQueue> {
    pub(in crate::pool) queue: Q,
    slots: Slots,
    seats: Vec<Arc<Seat<Q::Own>>>,
    idle: Vec<Arc<Seat<Q::Own>>>,
    /// Workers that are about to exit: two must not in the place of one.
    leaving: usize,
    /// Workers that look for a task, or have been called to.
    looks: usize,
    /// Something else than slots admits tasks: workers ask it.
    gated: bool,
    asker: Option<Asker<Q>>,
    /// Threads only: how many there are at least, the most tasks that have been parked at once, and whether a timer lets the pool grow.
    pub(in crate::pool) least: usize,
    most_parked: usize,
    pub(in crate::pool) grows_later: bool,
    pub(in crate::pool) phase: Phase,
    pub(in crate::pool) quiet: Quiet,
    pub(in crate::pool) stats: PoolStats,
}

/// What is to be done after the lock.
#[must_use]
pub(in crate::pool) struct Acts<W> {
    pub(in crate::pool) call: Vec<Arc<Seat<W>>>,
    /// Workers to be started.
    pub(in crate::pool) start: Vec<Arc<Seat<W>>>,
    /// A thread is to be started, if there may be one more.
    pub(in crate::pool) grow: bool,
    pub(in crate::pool) quiet: Vec<Waker>,
}

impl<W> Default for Acts<W> {
    fn default() -> Self {
        Self {
            call: Vec::new(),
            start: Vec::new(),
            grow: false,
            quiet: Vec::new(),
        }
    }
}

impl<W> Acts<W> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.call.is_empty() && self.start.is_empty() && !self.grow && self.quiet.is_empty()
    }
}

/// What a worker does next.
pub(in crate::pool) enum Next<E> {
    /// It starts this, and whether on a lent slot.
    Run(E, bool),
    /// It asks what admits tasks.
    Ask,
    /// It looks again, at once or in a moment.
    Again,
    Sleep,
    Exit,
}

/// What workers have ended.
#[derive(Default)]
pub(in crate::pool) struct Counts {
    pub(in crate::pool) entries: usize,
    pub(in crate::pool) finished: u64,
    pub(in crate::pool) panicked: u64,
    pub(in crate::pool) expired: u64,
}

impl Counts {
    #[inline]
    pub(in crate::pool) fn count(&mut self, ran: Ran) {
        self.entries += 1;
        self.finished += u64::from(ran != Ran::Gone);
        self.panicked += u64::from(ran == Ran::Panicked);
    }

    pub(in crate::pool) fn of(ran: Ran) -> Self {
        let mut counts = Self::default();
        counts.count(ran);
        counts
    }
}

impl<Q: TaskQueue> State<Q> {
    pub(in crate::pool) fn new(queue: Q, limit: usize, gated: bool) -> Self {
        Self {
            queue,
            slots: Slots::new(limit),
            seats: Vec::new(),
            idle: Vec::new(),
            leaving: 0,
            looks: 0,
            gated,
            asker: None,
            least: 0,
            most_parked: 0,
            grows_later: false,
            phase: Phase::Running,
            quiet: Quiet::default(),
            stats: PoolStats::default(),
        }
    }

    /// How many tasks can start now.
    fn startable(&mut self) -> usize {
        // Not of the length alone: those that are in the queue may be of full groups.
        if self.first().is_none() {
            return 0;
        }
        let common = self.queue.len().min(self.slots.free());
        common.max(self.queue.awaited_len().min(self.slots.lent()))
    }

    /// The entry that is to start next.
    #[inline]
    pub(in crate::pool) fn first(&mut self) -> Option<Q::Key> {
        if self.queue.may_have_members() {
            self.set_members_aside();
        }
        let common = if self.slots.free() > 0 {
            self.queue.first()
        } else {
            None
        };
        // One that is awaited may have been taken out of the queue, and not have started.
        common.or_else(|| (self.slots.lent() > 0).then(|| self.queue.first_awaited())?)
    }

    /// Sets aside what is first while its group is full.
    #[cold]
    fn set_members_aside(&mut self) {
        while let Some(key) = self.queue.first()
            && let Some(member) = self.queue.get(key).and_then(Entry::member)
            && member.must_wait()
        {
            let member = Arc::clone(member);
            self.queue.set_aside(key).inspect(|&key| member.is_set_aside(key));
        }
    }

    /// A task of a group with a limit has ended.
    #[cold]
    pub(in crate::pool) fn member_ended(&mut self, member: &Membership) {
        if member.ends() {
            self.pass_place_on(member);
        }
    }

    /// An entry has left the queue, and will not start.
    #[inline]
    pub(in crate::pool) fn entry_left(&mut self, entry: &Q::Entry) {
        if let Some(member) = entry.member() {
            self.member_left(member);
        }
    }

    /// The same of a task of a group with a limit.
    pub(in crate::pool) fn member_left(&mut self, member: &Membership) {
        if member.leaves_queue() {
            self.pass_place_on(member);
        }
    }

    fn pass_place_on(&mut self, member: &Membership) {
        if seeded!("group_limit_forgets_those_aside") {
            return member.pass_on(|_| false);
        }
        member.pass_on(|key| self.queue.restore(key).is_some_and(|next| next.reserve()));
    }

    pub(in crate::pool) fn get(&self, key: Q::Key) -> Option<&Q::Entry> {
        self.queue.get(key)
    }

    /// Calls or starts workers, as tasks can start for which none looks.
    #[inline]
    pub(in crate::pool) fn call(&mut self, acts: &mut Acts<Q::Own>) {
        let is_plain = self.phase == Phase::Running && self.asker.is_none();
        if Q::THREADS && is_plain && (self.looks > 0 || (self.idle.is_empty() && !self.may_grow())) {
            return;
        }
        self.call_some(acts);
    }

    fn call_some(&mut self, acts: &mut Acts<Q::Own>) {
        if self.phase != Phase::Running && self.queue.len() == 0 && !seeded!("engine_drains_quietly") {
            self.call_idle(acts);
        }
        if self.asker.is_some() {
            let first = self.first();
            if let Some((asker, asks)) = &self.asker
                && *asks != first
                && !seeded!("engine_asks_for_what_was_first")
            {
                acts.call.push(Arc::clone(asker));
            }
            return;
        }
        let most = if self.gated || Q::THREADS { 1 } else { usize::MAX };
        let wanted = self.startable().min(most);
        while self.looks < wanted {
            match self.idle.pop() {
                Some(seat) => self.calls(seat, acts),
                None if Q::THREADS => {
                    acts.grow = self.may_grow();
                    return;
                }
                None => {
                    let seat = Arc::new(self.queue.seat());
                    self.starts(seat, acts);
                }
            }
        }
    }

    fn calls(&mut self, seat: Arc<Seat<Q::Own>>, acts: &mut Acts<Q::Own>) {
        self.looks += 1;
        seat.looks();
        acts.call.push(seat);
    }

    /// A worker is about to be started that looks.
    pub(in crate::pool) fn starts(&mut self, seat: Arc<Seat<Q::Own>>, acts: &mut Acts<Q::Own>) {
        self.looks_again(&seat);
        self.enters(&seat);
        acts.start.push(seat);
    }

    /// A worker is about to be started.
    pub(in crate::pool) fn enters(&mut self, seat: &Arc<Seat<Q::Own>>) {
        self.seats.push(Arc::clone(seat));
        self.stats.peak_threads = self.stats.peak_threads.max(self.seats.len());
    }

    /// How many workers there are and will be.
    pub(in crate::pool) fn staying(&self) -> usize {
        self.seats.len() - self.leaving
    }

    /// How many workers there are above the limit, those not counted whose tasks are parked, or of threads were at once.
    fn surplus(&self) -> usize {
        let parked = if Q::THREADS {
            self.most_parked
        } else {
            self.slots.parked()
        };
        self.staying().saturating_sub(self.slots.limit().saturating_add(parked))
    }

    // ---- threads ----

    /// True when one more thread may be started.
    #[inline]
    pub(in crate::pool) fn may_grow(&self) -> bool {
        let most = self.slots.limit().saturating_add(self.slots.parked().min(SPARES));
        let has_thread = self.staying() >= most && self.staying() > self.slots.parked();
        !has_thread && (!self.grows_later || self.is_urgent())
    }

    /// True when one more thread would find a task, for which none looks.
    pub(in crate::pool) fn wants_thread(&mut self) -> bool {
        let finds_task = self.asker.is_none() && self.startable() > 0;
        finds_task && self.may_grow() && self.idle.is_empty() && self.looks == 0 && self.phase != Phase::Stopped
    }

    /// True when no rate holds the next thread back: none is there, or all the others wait for it.
    pub(in crate::pool) fn is_urgent(&self) -> bool {
        self.staying() <= self.slots.parked() || self.slots.free() == 0
    }

    /// True when a task that comes in calls a worker, or starts one.
    pub(in crate::pool) fn wants_call(&self) -> bool {
        let could_start = self.slots.free() > 0 && (!self.idle.is_empty() || self.may_grow());
        self.gated || (self.looks == 0 && could_start)
    }

    /// True while no worker sleeps, and no more will be started.
    pub(in crate::pool) fn is_busy(&self) -> bool {
        self.idle.is_empty() && self.staying() >= self.slots.limit()
    }

    /// The worker has slept for as long as it is kept: true when it is to exit.
    pub(in crate::pool) fn leaves_idle(&mut self, seat: &Arc<Seat<Q::Own>>) -> bool {
        let Some(at) = self.idle.iter().position(|idle| Arc::ptr_eq(idle, seat)) else {
            return false;
        };
        if self.staying() <= self.least {
            return false;
        }
        self.idle.remove(at);
        self.most_parked = self.slots.parked().max(self.most_parked.saturating_sub(1));
        self.leaving += 1;
        true
    }

    // ---- what a worker does ----

    /// What the worker does next. What `is_gone`, as it will not start, goes to `gone`. A `patient` worker that finds nothing looks again
    /// before it sleeps, if no other does.
    pub(in crate::pool) fn next(
        &mut self,
        seat: &Arc<Seat<Q::Own>>,
        patient: bool,
        is_gone: impl Fn(&Q::Entry) -> Option<Gone>,
        gone: &mut Vec<Q::Entry>,
        acts: &mut Acts<Q::Own>,
    ) -> Next<Q::Entry> {
        self.looks_no_more(seat);
        let next = loop {
            match self.first() {
                Some(key)
                    if gone.len() < GONE
                        && let Some(why) = self.queue.get(key).and_then(&is_gone) =>
                {
                    self.stats.expired += u64::from(why == Gone::Late);
                    gone.extend(self.remove(key, acts));
                }
                // They are the user's, and are dropped first: meanwhile this worker has nothing in hand, and another is called.
                _ if !gone.is_empty() => {
                    self.asks_no_more(seat);
                    break Next::Again;
                }
                _ if self.surplus() > 0 => break self.exit(),
                Some(_) if self.gated && self.asker.is_some() => break self.sleep(seat),
                Some(key) if self.gated => {
                    self.asker = Some((Arc::clone(seat), Some(key)));
                    break Next::Ask;
                }
                Some(key) => match self.take(key) {
                    Some((entry, borrows)) => break Next::Run(entry, borrows),
                    None => unreachable!("what is first is queued"),
                },
                None if self.slots.free() > 0 && self.queue.refill(&self.seats) => {}
                None if self.phase == Phase::Stopped => break self.exit(),
                None if self.phase != Phase::Running && self.queue.len() == 0 => break self.exit(),
                None if patient && self.looks == 0 && self.slots.free() > 0 => {
                    self.looks_again(seat);
                    break Next::Again;
                }
                None => break self.sleep(seat),
            }
        };
        self.call(acts);
        next
    }

    #[inline]
    fn looks_no_more(&mut self, seat: &Arc<Seat<Q::Own>>) {
        if seat.looks_no_more() {
            if !seeded!("engine_looks_for_ever") {
                self.looks -= 1;
            }
        } else {
            // It was woken by a call from before it fell asleep.
            self.idle.retain(|idle| !Arc::ptr_eq(idle, seat));
        }
    }

    /// The worker is on its way to look: none is called in its place.
    fn looks_again(&mut self, seat: &Seat<Q::Own>) {
        self.looks += 1;
        seat.looks();
    }

    fn sleep(&mut self, seat: &Arc<Seat<Q::Own>>) -> Next<Q::Entry> {
        self.idle.push(Arc::clone(seat));
        Next::Sleep
    }

    fn exit(&mut self) -> Next<Q::Entry> {
        self.leaving += 1;
        Next::Exit
    }

    /// Takes the entry out to start it. There is a slot.
    fn take(&mut self, key: Q::Key) -> Option<(Q::Entry, bool)> {
        let entry = self.queue.take(key)?;
        if let Some(member) = entry.member() {
            member.start();
        }
        Some((entry, self.slots.start()))
    }

    /// A task was taken in.
    pub(in crate::pool) fn came(&mut self, tasks: usize) {
        self.quiet.begun(tasks);
        self.stats.submitted += tasks as u64;
    }

    /// Tasks have ended that ran, or were taken out.
    pub(in crate::pool) fn count(&mut self, counts: Counts, acts: &mut Acts<Q::Own>) {
        self.stats.finished += counts.finished;
        self.stats.panicked += counts.panicked;
        self.stats.expired += counts.expired;
        self.finished(counts.entries, acts);
    }

    /// The slot is free again that a task started on, lent or not.
    pub(in crate::pool) fn free_slot(&mut self, borrowed: bool) {
        self.slots.end(borrowed);
    }

    pub(in crate::pool) fn finished(&mut self, tasks: usize, acts: &mut Acts<Q::Own>) {
        self.quiet.finished(tasks, &mut acts.quiet);
    }

    /// Takes the entry out of the queue: it will not start.
    pub(in crate::pool) fn remove(&mut self, key: Q::Key, acts: &mut Acts<Q::Own>) -> Option<Q::Entry> {
        let entry = self.queue.remove(key)?;
        self.entry_left(&entry);
        self.finished(1, acts);
        Some(entry)
    }

    /// Nothing more starts: the queue is empty.
    pub(in crate::pool) fn stop(&mut self, drained: usize, acts: &mut Acts<Q::Own>) {
        self.phase = Phase::Stopped;
        self.finished(drained, acts);
        self.call_all(acts);
    }

    /// No more tasks are taken in.
    pub(in crate::pool) fn close(&mut self, acts: &mut Acts<Q::Own>) {
        self.phase = self.phase.max(Phase::Draining);
        if !seeded!("engine_closes_quietly") {
            self.call_all(acts);
        }
    }

    /// Every idle worker looks, and so does the asker.
    fn call_all(&mut self, acts: &mut Acts<Q::Own>) {
        self.call_idle(acts);
        self.call_asker(acts);
    }

    /// Another entry may be first, although its key does not say so.
    pub(in crate::pool) fn call_asker(&mut self, acts: &mut Acts<Q::Own>) {
        acts.call.extend(self.asker.iter().map(|(seat, _)| Arc::clone(seat)));
    }

    fn call_idle(&mut self, acts: &mut Acts<Q::Own>) {
        for seat in std::mem::take(&mut self.idle) {
            self.calls(seat, acts);
        }
    }

    pub(in crate::pool) fn set_limit(&mut self, limit: usize, acts: &mut Acts<Q::Own>) {
        self.slots.set_limit(limit);
        self.most_parked = self.slots.parked();
        if seeded!("engine_resizes_quietly") {
            return;
        }
        // Those above the limit look, and exit.
        let surplus = self.surplus().min(self.idle.len());
        for seat in self.idle.split_off(self.idle.len() - surplus) {
            self.calls(seat, acts);
        }
        self.call(acts);
    }

    // ---- tasks that wait ----

    /// The task of a worker waits, and lends its slot. False, and it does not, when no thread would be left for those that are awaited.
    pub(in crate::pool) fn park(&mut self, acts: &mut Acts<Q::Own>) -> bool {
        if Q::THREADS && self.slots.parked() + 1 >= self.slots.limit().saturating_add(SPARES) {
            return false;
        }
        self.slots.park();
        self.most_parked = self.most_parked.max(self.slots.parked().min(SPARES));
        if !seeded!("engine_lends_quietly") {
            self.call(acts);
        }
        true
    }

    /// The task goes on at once.
    pub(in crate::pool) fn resume(&mut self) {
        self.slots.resume();
    }

    // ---- the asker ----

    /// For which entry the asker asks from now on. None: it asks no more.
    pub(in crate::pool) fn asks(&mut self, seat: &Arc<Seat<Q::Own>>, acts: &mut Acts<Q::Own>) -> Option<Q::Key> {
        let first = self.first();
        self.asker = first.map(|key| (Arc::clone(seat), Some(key)));
        if first.is_none() {
            self.asks_no_more(seat);
            self.call(acts);
        }
        first
    }

    /// What was asked for is admitted: the entry starts, if it `fits` still, which is asked of the one that is first now.
    pub(in crate::pool) fn admitted(
        &mut self,
        fits: impl FnOnce(&Q::Entry) -> bool,
        acts: &mut Acts<Q::Own>,
    ) -> Option<(Q::Entry, bool)> {
        let key = self.first().filter(|&key| self.queue.get(key).is_some_and(fits))?;
        self.asker = None;
        let taken = self.take(key);
        self.call(acts);
        taken
    }

    /// A runner looks next: none is started in its place. A thread drops what is a user's first, for as long as that takes.
    fn asks_no_more(&mut self, seat: &Seat<Q::Own>) {
        if !Q::THREADS {
            self.looks_again(seat);
        }
    }

    /// What was asked for is refused, or too late: the entry will not start, and the worker asks no more.
    pub(in crate::pool) fn refused(
        &mut self,
        seat: &Seat<Q::Own>,
        key: Q::Key,
        acts: &mut Acts<Q::Own>,
    ) -> Option<Q::Entry> {
        self.asker = None;
        self.asks_no_more(seat);
        let entry = self.remove(key, acts);
        self.call(acts);
        entry
    }

    // ---- workers ----

    /// A worker has gone. True when it was dropped, or not started, and none is left for what is queued.
    pub(in crate::pool) fn left(&mut self, seat: &Arc<Seat<Q::Own>>, in_order: bool, acts: &mut Acts<Q::Own>) -> bool {
        self.looks_no_more(seat);
        self.seats.retain(|known| !Arc::ptr_eq(known, seat));
        self.leaving -= usize::from(in_order);
        if self.asker.as_ref().is_some_and(|(asker, _)| Arc::ptr_eq(asker, seat)) {
            self.asker = None;
        }
        if self.seats.is_empty() {
            self.quiet.tell(&mut acts.quiet);
        }
        // One that was dropped is not replaced: its runtime is gone, and drops the next as well.
        if in_order || (Q::THREADS && !self.idle.is_empty()) {
            self.call(acts);
        }
        !in_order && self.seats.is_empty() && (!Q::THREADS || self.queue.len() > 0)
    }

    pub(in crate::pool) fn has_workers(&self) -> bool {
        !self.seats.is_empty()
    }

    pub(in crate::pool) fn workers(&self) -> &[Arc<Seat<Q::Own>>] {
        &self.seats
    }

    pub(in crate::pool) fn stats(&self, limit: usize) -> PoolStats {
        PoolStats {
            threads: self.seats.len(),
            idle: self.idle.len(),
            limit,
            queued: self.queue.len() + self.queue.aside_len(),
            unfinished: self.quiet.unfinished(),
            ..self.stats
        }
    }

    pub(in crate::pool) fn limit(&self) -> usize {
        self.slots.limit()
    }
}
