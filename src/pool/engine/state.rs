//! The state under the lock of a pool: the queue, the slots, and the workers. Each transition is plain data; [`Acts`]
//! holds its actions, which run after the lock.
//!
//! - A called worker looks for a task. As many async workers look as tasks can start, because a called one may be
//!   scheduled behind a task that blocks its runtime's thread. Of threads, one looks at a time, and calls the next when
//!   it has found a task.
//! - A worker falls asleep under the lock, after it has found no startable task there. So a transition either comes
//!   before, and the worker sees the task that it made startable, or comes after, and calls the worker.
//! - If a policy or shared slots admit tasks, one worker at a time asks, for the first task. That task stays in the
//!   queue meanwhile. Every change of the first task calls the asker.

use super::entry::Entry;
use super::group_limit::Membership;
use super::queue::{Entries, Key};
use super::scheduler::Kind;
use super::seat::Seat;
use super::slots::Slots;
use crate::pool::capacity::Capacity;
use crate::pool::cell::{Queued, Ran};
use crate::pool::common::PoolStats;
use crate::pool::termination::Idleness;
use std::sync::Arc;
use std::task::Waker;

/// The number of threads that a pool may have beyond its limit, to run awaited tasks while others wait.
pub(in crate::pool) const SPARES: usize = 256;

/// The most entries that will not start and that one transition takes out.
const GONE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pool) enum Phase {
    Running,
    /// The pool accepts no tasks; queued tasks still run.
    Draining,
    /// The queue has been drained, and no task starts any more.
    Stopped,
}

/// The worker that asks, and the entry for which it asks.
type Asker<K> = (Arc<Seat<<K as Kind>::Worker>>, Option<Key>);

pub(in crate::pool) struct State<K: Kind> {
    pub(in crate::pool) queue: Entries<K>,
    /// The bound on the queue, and what counts against it.
    pub(in crate::pool) capacity: Capacity,
    /// The state that only this kind of pools has.
    pub(in crate::pool) own: K::Shared,
    pub(super) slots: Slots,
    pub(in crate::pool) seats: Vec<Arc<Seat<K::Worker>>>,
    next_index: usize,
    idle: Vec<Arc<Seat<K::Worker>>>,
    /// Workers that are about to exit: two must not exit for a surplus of one.
    leaving: usize,
    /// Workers that look for a task, or have been called to.
    looks: usize,
    /// True if a policy or shared slots admit tasks: workers must ask them.
    gated: bool,
    asker: Option<Asker<K>>,
    /// For threads only: the least number of threads, the most tasks parked at once, and whether a timer lets the pool
    /// grow.
    pub(in crate::pool) least: usize,
    most_parked: usize,
    pub(in crate::pool) grows_later: bool,
    pub(in crate::pool) phase: Phase,
    pub(in crate::pool) idleness: Idleness,
    /// The number of tasks that were claimed, will not start, and have not been dropped.
    refused: usize,
    pub(in crate::pool) stats: PoolStats,
}

/// The actions to run after the lock.
#[must_use]
pub(in crate::pool) struct Acts<K: Kind> {
    pub(in crate::pool) call: Vec<Arc<Seat<K::Worker>>>,
    /// The workers to start.
    pub(in crate::pool) start: Vec<Arc<Seat<K::Worker>>>,
    /// True if one more thread is to start, if the pool may have one more.
    pub(in crate::pool) grow: bool,
    /// Those that wait for the pool's idleness or end, or for capacity.
    pub(in crate::pool) wake: Vec<Waker>,
    /// Dead entries that have left the queue, to be dropped.
    pub(in crate::pool) dead: Vec<Entry<K>>,
    /// Entries whose tasks were claimed after their deadline, to be refused.
    pub(in crate::pool) late: Vec<Entry<K>>,
}

impl<K: Kind> Default for Acts<K> {
    fn default() -> Self {
        Self {
            call: Vec::new(),
            start: Vec::new(),
            grow: false,
            wake: Vec::new(),
            dead: Vec::new(),
            late: Vec::new(),
        }
    }
}

impl<K: Kind> Acts<K> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let calls = !self.call.is_empty() || !self.start.is_empty() || self.grow || !self.wake.is_empty();
        !calls && self.dead.is_empty() && self.late.is_empty()
    }
}

/// The next step of a worker.
pub(in crate::pool) enum Next<E> {
    /// Runs this entry; true if on a lent slot.
    Run(E, bool),
    /// Asks for admission.
    Ask,
    /// Looks again, at once or in a moment.
    Again,
    Sleep,
    Exit,
}

/// The tasks that a thread has claimed and ended, and not yet reported.
#[derive(Default)]
pub(in crate::pool) struct Counts {
    pub(in crate::pool) tasks: usize,
    pub(in crate::pool) finished: u64,
    pub(in crate::pool) panicked: u64,
    /// The slot on which the thread has run them, if any; true if it is a lent one.
    pub(in crate::pool) slot: Option<bool>,
    /// The membership of the task, if its group has a limit.
    pub(in crate::pool) member: Option<Arc<Membership>>,
}

impl Counts {
    #[inline]
    pub(in crate::pool) fn count(&mut self, ran: Ran) {
        self.tasks += 1;
        self.finished += u64::from(ran != Ran::Gone);
        self.panicked += u64::from(ran == Ran::Panicked);
    }
}

impl<K: Kind> State<K> {
    pub(in crate::pool) fn new(limit: usize, gated: bool, capacity: Capacity) -> Self {
        Self {
            queue: Entries::new(),
            capacity,
            own: K::Shared::default(),
            slots: Slots::new(limit),
            seats: Vec::new(),
            next_index: 0,
            idle: Vec::new(),
            leaving: 0,
            looks: 0,
            gated,
            asker: None,
            least: 0,
            most_parked: 0,
            grows_later: false,
            phase: Phase::Running,
            idleness: Idleness::default(),
            refused: 0,
            stats: PoolStats::default(),
        }
    }

    /// Returns the number of tasks that can start now.
    fn startable(&mut self) -> usize {
        // The lengths count tasks of full groups as well.
        let may_be_full = !self.queue.is_uniform() || self.queue.awaited_len() > 0;
        if may_be_full && self.first().is_none() {
            return 0;
        }
        let common = self.queue.len().min(self.slots.free());
        common.max(self.queue.awaited_len().min(self.slots.lent()))
    }

    /// Returns the entry that is to start next.
    #[inline]
    pub(in crate::pool) fn first(&mut self) -> Option<Key> {
        if !self.queue.is_uniform() {
            self.set_members_aside();
        }
        let common = if self.slots.free() > 0 {
            self.queue.first()
        } else {
            None
        };
        common.or_else(|| (self.slots.lent() > 0).then(|| self.queue.first_awaited())?)
    }

    /// Sets aside the first task while its group is full.
    #[cold]
    fn set_members_aside(&mut self) {
        while let Some(key) = self.queue.first() {
            let member = self.queue.get(key).and_then(Entry::member);
            let Some(member) = member.filter(|member| member.must_wait()) else {
                return;
            };
            let member = Arc::clone(member);
            self.queue.set_aside(key).inspect(|&key| member.is_set_aside(key));
        }
    }

    /// Updates the group, if it has a limit, of a task that has ended, or will not start.
    #[inline]
    fn member_ends(&mut self, member: Option<&Membership>) {
        if let Some(member) = member {
            if member.ends() {
                self.pass_place_on(member);
            }
        }
    }

    fn pass_place_on(&mut self, member: &Membership) {
        member.pass_on(|key| self.queue.restore(key).is_some_and(|next| next.reserve()));
    }

    /// Calls or starts workers for the startable tasks for which no worker looks.
    #[inline]
    pub(in crate::pool) fn call(&mut self, acts: &mut Acts<K>) {
        let is_plain = self.phase == Phase::Running && self.asker.is_none();
        if K::THREADS && is_plain && (self.looks > 0 || (self.idle.is_empty() && !self.may_grow())) {
            return;
        }
        self.call_some(acts);
    }

    fn call_some(&mut self, acts: &mut Acts<K>) {
        if self.phase != Phase::Running && self.queue.len() == 0 {
            self.call_idle(acts);
        }
        if self.asker.is_some() {
            let first = self.first();
            if let Some((asker, asks)) = &self.asker {
                if *asks != first {
                    acts.call.push(Arc::clone(asker));
                }
            }
            return;
        }
        let most = if self.gated || K::THREADS { 1 } else { usize::MAX };
        let wanted = self.startable().min(most);
        while self.looks < wanted {
            match self.idle.pop() {
                Some(seat) => self.calls(seat, acts),
                None if K::THREADS => {
                    acts.grow = self.may_grow();
                    return;
                }
                None => self.starts(acts),
            }
        }
    }

    fn calls(&mut self, seat: Arc<Seat<K::Worker>>, acts: &mut Acts<K>) {
        self.looks_again(&seat);
        acts.call.push(seat);
    }

    /// Makes one more worker, which is about to start and looks for a task.
    pub(in crate::pool) fn starts(&mut self, acts: &mut Acts<K>) {
        let seat = self.enters();
        self.looks_again(&seat);
        acts.start.push(seat);
    }

    /// Makes one more worker, which is about to start.
    pub(in crate::pool) fn enters(&mut self) -> Arc<Seat<K::Worker>> {
        let seat = Arc::new(Seat::new(self.next_index));
        self.next_index += 1;
        self.seats.push(Arc::clone(&seat));
        self.stats.peak_threads = self.stats.peak_threads.max(self.seats.len());
        seat
    }

    /// Returns the number of workers, without those about to exit.
    pub(in crate::pool) fn staying(&self) -> usize {
        self.seats.len() - self.leaving
    }

    /// Returns the number of workers above the limit. Does not count one worker per parked task; of threads, per task
    /// of the most parked at once.
    fn surplus(&self) -> usize {
        let parked = if K::THREADS {
            self.most_parked
        } else {
            self.slots.parked
        };
        self.staying().saturating_sub(self.slots.limit.saturating_add(parked))
    }

    // ---- threads ----

    /// Returns true if one more thread may start.
    #[inline]
    pub(in crate::pool) fn may_grow(&self) -> bool {
        let most = self.slots.limit.saturating_add(self.slots.parked.min(SPARES));
        let has_thread = self.staying() >= most && self.staying() > self.slots.parked;
        !has_thread && (!self.grows_later || self.is_urgent())
    }

    /// Returns true if one more thread would find a task for which no worker looks.
    pub(in crate::pool) fn wants_thread(&mut self) -> bool {
        let finds_task = self.asker.is_none() && self.startable() > 0;
        finds_task && self.may_grow() && self.idle.is_empty() && self.looks == 0 && self.phase != Phase::Stopped
    }

    /// Returns true if the growth rate does not delay the next thread: there is no thread, or all other threads wait
    /// for it.
    pub(in crate::pool) fn is_urgent(&self) -> bool {
        self.staying() <= self.slots.parked || self.slots.free() == 0
    }

    /// Returns true if a submitted task calls or starts a worker.
    pub(in crate::pool) fn wants_call(&self) -> bool {
        let could_start = self.slots.free() > 0 && (!self.idle.is_empty() || self.may_grow());
        self.gated || (self.looks == 0 && could_start)
    }

    /// Returns true while no worker sleeps and no more workers will start.
    pub(in crate::pool) fn is_busy(&self) -> bool {
        self.idle.is_empty() && self.staying() >= self.slots.limit
    }

    /// Ends the idle time of a worker. Returns true if the worker is to exit.
    pub(in crate::pool) fn leaves_idle(&mut self, seat: &Arc<Seat<K::Worker>>) -> bool {
        let Some(at) = self.idle.iter().position(|idle| Arc::ptr_eq(idle, seat)) else {
            return false;
        };
        if self.staying() <= self.least {
            return false;
        }
        self.idle.remove(at);
        self.most_parked = self.slots.parked.max(self.most_parked.saturating_sub(1));
        self.leaving += 1;
        true
    }

    // ---- worker steps ----

    /// Returns the next step of the worker. Takes out dead and late entries on the way. If a `patient` worker finds no
    /// task, it looks again before it sleeps, unless another worker looks.
    pub(in crate::pool) fn next(
        &mut self,
        seat: &Arc<Seat<K::Worker>>,
        patient: bool,
        is_late: impl Fn(&Entry<K>) -> bool,
        acts: &mut Acts<K>,
    ) -> Next<Entry<K>> {
        self.looks_no_more(seat);
        let next = loop {
            let is_full = acts.dead.len() + acts.late.len() >= GONE;
            match self.first() {
                Some(key) if !is_full && self.queue.get(key).is_some_and(&is_late) => self.expire(key, acts),
                // Dropping these runs user code, and comes first. This worker has no task in hand meanwhile, and
                // another is called.
                _ if is_full || !acts.late.is_empty() => {
                    self.asks_no_more(seat);
                    break Next::Again;
                }
                // The asker asks for live entries only.
                Some(key) if self.gated && !self.queue.get(key).is_some_and(Entry::is_live) => {
                    self.expire(key, acts);
                }
                _ if self.surplus() > 0 => break self.exit(),
                Some(_) if self.gated && self.asker.is_some() => break self.sleep(seat),
                Some(key) if self.gated => {
                    self.asker = Some((Arc::clone(seat), Some(key)));
                    break Next::Ask;
                }
                Some(key) => {
                    if let Some((entry, borrows)) = self.take(key, acts) {
                        break Next::Run(entry, borrows);
                    }
                }
                None if self.slots.free() > 0 && self.refill() => {}
                None if self.phase == Phase::Stopped => break self.exit(),
                None if self.phase != Phase::Running && self.queue.len() == 0 => break self.exit(),
                None if patient && self.looks == 0 && self.slots.free() > 0 => {
                    self.looks_again(seat);
                    break Next::Again;
                }
                None => break self.sleep(seat),
            }
        };
        self.purge_majority(acts);
        self.call(acts);
        next
    }

    #[inline]
    fn looks_no_more(&mut self, seat: &Arc<Seat<K::Worker>>) {
        if seat.looks_no_more() {
            self.looks -= 1;
        } else {
            // A call from before the worker fell asleep has woken it.
            self.idle.retain(|idle| !Arc::ptr_eq(idle, seat));
        }
    }

    /// Marks the worker as about to look: the pool calls no other in its place.
    fn looks_again(&mut self, seat: &Seat<K::Worker>) {
        self.looks += 1;
        seat.looks();
    }

    fn sleep(&mut self, seat: &Arc<Seat<K::Worker>>) -> Next<Entry<K>> {
        self.idle.push(Arc::clone(seat));
        Next::Sleep
    }

    fn exit(&mut self) -> Next<Entry<K>> {
        self.leaving += 1;
        Next::Exit
    }

    /// Takes out an entry and claims its task, to start it. Returns `None` if the entry is dead. The caller has checked
    /// that there is a slot.
    fn take(&mut self, key: Key, acts: &mut Acts<K>) -> Option<(Entry<K>, bool)> {
        if !self.queue.get(key)?.claim() {
            acts.dead.extend(self.queue.remove(key));
            return None;
        }
        let entry = self.queue.take(key)?;
        self.claimed(&entry, key.is_awaited());
        if let Some(member) = entry.member() {
            member.start();
        }
        Some((entry, self.slots.start()))
    }

    /// Counts a task that was claimed, and the entry that stays, dead, if it was claimed by its second one.
    #[inline]
    fn claimed(&mut self, entry: &Entry<K>, by_second: bool) {
        self.capacity.give_back(1, entry.weight());
        if by_second {
            self.queue.died();
        }
    }

    /// Claims the task of an entry that has left the queue and will not start. Returns `None` if the entry is dead.
    fn refuse(&mut self, entry: Entry<K>, is_second: bool, acts: &mut Acts<K>) -> Option<Entry<K>> {
        if !entry.claim() {
            acts.dead.push(entry);
            return None;
        }
        self.claimed(&entry, is_second);
        self.member_ends(entry.member().map(|member| &**member));
        self.refused += 1;
        Some(entry)
    }

    /// Takes out an entry that will not start. Claims its task. Returns `None` if the entry is dead.
    fn remove(&mut self, key: Key, acts: &mut Acts<K>) -> Option<Entry<K>> {
        let entry = self.queue.remove(key)?;
        self.refuse(entry, key.is_awaited(), acts)
    }

    /// Takes out an entry that is late or dead.
    fn expire(&mut self, key: Key, acts: &mut Acts<K>) {
        let late = self.remove(key, acts);
        acts.late.extend(late);
    }

    /// Claims a task for a cancel, and leaves its entry dead. Returns false if it was claimed before.
    pub(in crate::pool) fn cancel(&mut self, task: &(impl Queued + ?Sized), acts: &mut Acts<K>) -> bool {
        if !self.claim_aside(task, acts) {
            return false;
        }
        self.member_ends(task.options().and_then(|options| options.member.as_deref()));
        self.refused += 1;
        // Another entry may be first now, or may start within its group's limit.
        self.call_asker(acts);
        self.call(acts);
        true
    }

    /// Claims a task by no entry, and leaves its entry dead. Returns false if it was claimed before.
    pub(in crate::pool) fn claim_aside(&mut self, task: &(impl Queued + ?Sized), acts: &mut Acts<K>) -> bool {
        let claims = task.claim();
        if claims {
            self.capacity
                .give_back(1, task.options().map_or(1, |options| options.weight));
            self.queue.died();
            self.purge_majority(acts);
        }
        claims
    }

    /// Counts tasks that were claimed, did not start, and have been dropped.
    pub(in crate::pool) fn dropped(&mut self, tasks: usize, acts: &mut Acts<K>) {
        self.refused -= tasks;
        self.finished(tasks, acts);
    }

    /// Counts accepted tasks.
    pub(in crate::pool) fn came(&mut self, tasks: usize) {
        self.idleness.unfinished += tasks;
        self.stats.submitted += tasks as u64;
    }

    /// Counts tasks that have ended, and frees their slot, lent or not.
    #[inline]
    pub(in crate::pool) fn count(&mut self, counts: Counts, acts: &mut Acts<K>) {
        self.member_ends(counts.member.as_deref());
        if let Some(borrowed) = counts.slot {
            self.slots.end(borrowed);
        }
        self.stats.finished += counts.finished;
        self.stats.panicked += counts.panicked;
        self.finished(counts.tasks, acts);
    }

    pub(in crate::pool) fn finished(&mut self, tasks: usize, acts: &mut Acts<K>) {
        self.idleness.finished(tasks, &mut acts.wake);
    }

    /// Stops the pool: no more tasks start. Claims and returns all that have not.
    pub(in crate::pool) fn stop(&mut self, acts: &mut Acts<K>) -> Vec<Entry<K>> {
        self.phase = Phase::Stopped;
        // The second entries are dead, since the first ones come before.
        let (unstarted, dead): (Vec<_>, Vec<_>) = self.drain().into_iter().partition(is_listed);
        acts.dead = dead;
        for entry in &unstarted {
            self.capacity.give_back(1, entry.weight());
        }
        self.finished(unstarted.len(), acts);
        self.end_intake(acts);
        unstarted
    }

    /// Closes the intake of tasks.
    pub(in crate::pool) fn close(&mut self, acts: &mut Acts<K>) {
        self.phase = self.phase.max(Phase::Draining);
        self.end_intake(acts);
    }

    /// Makes every idle worker look, the asker as well, and the submitters that wait.
    fn end_intake(&mut self, acts: &mut Acts<K>) {
        self.capacity.close(&mut acts.wake);
        self.call_idle(acts);
        self.call_asker(acts);
    }

    /// Calls the asker, because another entry may be first although its key does not show it.
    pub(in crate::pool) fn call_asker(&mut self, acts: &mut Acts<K>) {
        acts.call.extend(self.asker.iter().map(|(seat, _)| Arc::clone(seat)));
    }

    fn call_idle(&mut self, acts: &mut Acts<K>) {
        for seat in std::mem::take(&mut self.idle) {
            self.calls(seat, acts);
        }
    }

    /// Sets the least number of threads. When it sinks, every idle worker looks, and sleeps for its keep-alive again: one that belonged to
    /// the minimum sleeps without a timer.
    pub(in crate::pool) fn set_least(&mut self, least: usize, acts: &mut Acts<K>) {
        if least < std::mem::replace(&mut self.least, least) {
            self.call_idle(acts);
        }
    }

    pub(in crate::pool) fn set_limit(&mut self, limit: usize, acts: &mut Acts<K>) {
        self.slots.limit = limit;
        self.most_parked = self.slots.parked;
        // Surplus workers look, and exit.
        let surplus = self.surplus().min(self.idle.len());
        for seat in self.idle.split_off(self.idle.len() - surplus) {
            self.calls(seat, acts);
        }
        self.call(acts);
    }

    // ---- the queue ----

    /// Takes one task from a local queue.
    pub(in crate::pool) fn take_local(&self) -> Option<Entry<K>> {
        self.seats.iter().find_map(|seat| K::take_local(&seat.own))
    }

    /// Moves one task from a local queue to the empty priority queue.
    fn refill(&mut self) -> bool {
        let local = (self.queue.len() == 0).then(|| self.take_local()).flatten();
        local.map(|entry| self.queue.push_front(entry)).is_some()
    }

    /// Removes all entries, in the order in which they would have started.
    fn drain(&mut self) -> Vec<Entry<K>> {
        let local = std::iter::from_fn(|| self.take_local());
        let mut entries: Vec<_> = local.collect();
        entries.extend(self.queue.drain());
        entries
    }

    /// Takes out the entry that a full queue evicts first, and claims its task.
    pub(in crate::pool) fn evict(&mut self, acts: &mut Acts<K>) -> Option<Entry<K>> {
        loop {
            let entry = self.queue.evict().or_else(|| self.take_local())?;
            if let Some(entry) = self.refuse(entry, false, acts) {
                self.dropped(1, acts);
                // It may ask for the task's second entry.
                self.call_asker(acts);
                self.call(acts);
                return Some(entry);
            }
        }
    }

    /// Takes the dead entries out of all queues, once they are the majority.
    #[inline]
    pub(in crate::pool) fn purge_majority(&mut self, acts: &mut Acts<K>) {
        if self.queue.is_mostly_dead() {
            self.queue.purge(&mut acts.dead);
        }
    }

    // ---- waiting tasks ----

    /// Lends the slot of a worker whose task waits. Returns false, and lends nothing, if the loan would leave no thread
    /// for the awaited tasks.
    pub(in crate::pool) fn park(&mut self, acts: &mut Acts<K>) -> bool {
        if K::THREADS && self.slots.parked + 1 >= self.slots.limit.saturating_add(SPARES) {
            return false;
        }
        self.slots.parked += 1;
        self.most_parked = self.most_parked.max(self.slots.parked.min(SPARES));
        self.call(acts);
        true
    }

    /// Takes the slot back, always: the task resumes at once.
    pub(in crate::pool) fn resume(&mut self) {
        self.slots.parked -= 1;
    }

    // ---- the asker ----

    /// Returns the entry for which the asker asks from now on. `None`: the asker stops asking.
    pub(in crate::pool) fn asks(&mut self, seat: &Arc<Seat<K::Worker>>, acts: &mut Acts<K>) -> Option<Key> {
        let first = self.first();
        self.asker = first.map(|key| (Arc::clone(seat), Some(key)));
        if first.is_none() {
            self.asks_no_more(seat);
            self.call(acts);
        }
        first
    }

    /// Starts the first entry, which has been admitted, if that still `fits` the admission.
    pub(in crate::pool) fn admitted(
        &mut self,
        fits: impl FnOnce(&Entry<K>) -> bool,
        acts: &mut Acts<K>,
    ) -> Option<(Entry<K>, bool)> {
        let key = self.first().filter(|&key| self.queue.get(key).is_some_and(fits))?;
        let taken = self.take(key, acts)?;
        self.asker = None;
        self.call(acts);
        Some(taken)
    }

    /// Ends the asking. A runner looks next, so no runner starts in its place. A thread first drops user values, which
    /// may take long.
    fn asks_no_more(&mut self, seat: &Seat<K::Worker>) {
        if !K::THREADS {
            self.looks_again(seat);
        }
    }

    /// Takes out an entry that was refused, is late, or is dead, and ends the asking. Claims its task.
    pub(in crate::pool) fn refused(
        &mut self,
        seat: &Seat<K::Worker>,
        key: Key,
        acts: &mut Acts<K>,
    ) -> Option<Entry<K>> {
        self.asker = None;
        self.asks_no_more(seat);
        let entry = self.remove(key, acts);
        self.call(acts);
        entry
    }

    // ---- workers ----

    /// Removes a worker. Returns true if the worker was dropped or not started, and no worker is left for the queued
    /// tasks.
    pub(in crate::pool) fn left(&mut self, seat: &Arc<Seat<K::Worker>>, in_order: bool, acts: &mut Acts<K>) -> bool {
        self.looks_no_more(seat);
        self.seats.retain(|known| !Arc::ptr_eq(known, seat));
        self.leaving -= usize::from(in_order);
        if self.asker.as_ref().is_some_and(|(asker, _)| Arc::ptr_eq(asker, seat)) {
            self.asker = None;
        }
        if self.seats.is_empty() {
            self.idleness.tell(&mut acts.wake);
        }
        // A dropped runner is not replaced: its runtime is gone, and would drop the next one as well.
        if in_order || (K::THREADS && !self.idle.is_empty()) {
            self.call(acts);
        }
        !in_order && self.seats.is_empty() && (!K::THREADS || self.queue.has_live())
    }

    pub(in crate::pool) fn stats(&self, limit: usize) -> PoolStats {
        let unreported = self.seats.iter().map(|seat| K::unreported(&seat.own));
        let (started, ended) = unreported.fold((0, 0), |sum, worker| (sum.0 + worker.0, sum.1 + worker.1));
        PoolStats {
            threads: self.seats.len(),
            idle: self.idle.len(),
            limit,
            queued: self.capacity.queued() - started,
            unfinished: self.idleness.unfinished - self.refused - ended,
            ..self.stats
        }
    }
}

/// Returns true for an entry whose task has not started, and which this caller now claims for the report of a stop.
fn is_listed<K: Kind>(entry: &Entry<K>) -> bool {
    entry.claim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::cell::ClosureCell;
    use crate::pool::task_options::{PoolOptions, Priority};
    use crate::pool::threads::entry::Entry;
    use crate::pool::threads::kind::Threads;

    type Threaded = State<Threads<'static>>;
    type Worker = Arc<Seat<<Threads<'static> as Kind>::Worker>>;

    fn pool(limit: usize, gated: bool) -> Threaded {
        State::new(limit, gated, Capacity::checked(100, None).unwrap())
    }

    fn entry(priority: Priority) -> Entry<'static> {
        let options = PoolOptions::DEFAULT.with(|options| options.task.priority = priority);
        Entry::own(Caller::current(), || (), &options)
    }

    /// Queues a task, and returns what its submission does.
    fn push(state: &mut Threaded, entry: Entry<'static>) -> Acts<Threads<'static>> {
        let mut acts = Acts::default();
        assert_eq!(state.capacity.take(1, 1), 1);
        state.queue.push(entry);
        state.came(1);
        state.call(&mut acts);
        acts
    }

    fn queue(state: &mut Threaded, entry: Entry<'static>) {
        drop(push(state, entry));
    }

    /// A worker that has started and looks.
    fn worker(state: &mut Threaded) -> Worker {
        let mut acts = Acts::default();
        state.starts(&mut acts);
        acts.start.pop().unwrap()
    }

    fn next_of(state: &mut Threaded, worker: &Worker, patient: bool) -> (&'static str, Acts<Threads<'static>>) {
        let mut acts = Acts::default();
        let next = match state.next(worker, patient, |_| false, &mut acts) {
            Next::Run(_, false) => "run",
            Next::Run(_, true) => "run on a lent slot",
            Next::Ask => "ask",
            Next::Again => "again",
            Next::Sleep => "sleep",
            Next::Exit => "exit",
        };
        (next, acts)
    }

    fn next(state: &mut Threaded, worker: &Worker) -> &'static str {
        next_of(state, worker, false).0
    }

    fn end(state: &mut Threaded) {
        let mut counts = Counts {
            slot: Some(false),
            ..Counts::default()
        };
        counts.count(Ran::Done);
        state.count(counts, &mut Acts::default());
    }

    /// Which of the workers are called.
    fn called(acts: &Acts<Threads<'static>>) -> Vec<usize> {
        acts.call.iter().map(|seat| seat.index).collect()
    }

    #[test]
    fn one_thread_looks_at_a_time_and_the_next_is_started_when_it_has_found_a_task() {
        let mut state = pool(2, false);
        assert!(!state.wants_thread() && state.wants_call() && state.is_urgent());
        assert!(push(&mut state, entry(Priority::Normal)).grow && state.wants_thread());
        let first = worker(&mut state);
        assert!(!state.wants_thread() && !state.wants_call() && !state.is_busy());
        assert!(
            push(&mut state, entry(Priority::Normal)).is_empty(),
            "a worker looks already"
        );
        let (step, acts) = next_of(&mut state, &first, false);
        assert!(step == "run" && acts.grow && state.wants_thread());
        state.grows_later = true;
        assert!(!state.may_grow() && !state.wants_thread(), "the growth rate delays it");
        state.grows_later = false;
        let second = worker(&mut state);
        let (step, acts) = next_of(&mut state, &second, false);
        assert!(step == "run" && !acts.grow && state.is_busy());
        assert!(
            push(&mut state, entry(Priority::Normal)).is_empty(),
            "no more threads are allowed"
        );
        assert!(!state.may_grow() && !state.wants_thread() && !state.wants_call() && state.is_urgent());
        let stats = state.stats(2);
        assert_eq!((stats.threads, stats.idle, stats.peak_threads), (2, 0, 2));
        assert_eq!((stats.queued, stats.unfinished, stats.submitted), (1, 3, 3));
        end(&mut state);
        assert_eq!(next(&mut state, &first), "run");
        assert_eq!((state.stats(2).queued, state.stats(2).finished), (0, 1));
    }

    #[test]
    fn a_patient_worker_looks_once_more_and_a_sleeping_one_is_called() {
        let mut state = pool(2, false);
        let [first, second] = [(); 2].map(|()| worker(&mut state));
        assert_eq!(next_of(&mut state, &first, true).0, "sleep", "the other looks");
        assert_eq!(next_of(&mut state, &second, true).0, "again");
        assert!(
            push(&mut state, entry(Priority::Normal)).is_empty(),
            "it looks again by itself"
        );
        let (step, acts) = next_of(&mut state, &second, true);
        assert!(step == "run" && acts.is_empty() && !state.is_busy() && state.wants_call());
        assert_eq!(called(&push(&mut state, entry(Priority::Normal))), [0]);
        assert!(state.is_busy() && !state.wants_call());
        assert!(
            push(&mut state, entry(Priority::Normal)).is_empty(),
            "the called one looks"
        );
        assert_eq!(next(&mut state, &first), "run");
        assert_eq!((state.slots.free(), next(&mut state, &first)), (0, "sleep"));
    }

    #[test]
    fn surplus_workers_exit_once_each() {
        let mut state = pool(3, false);
        let workers = [(); 3].map(|()| worker(&mut state));
        assert!(workers.iter().all(|worker| next(&mut state, worker) == "sleep"));
        let mut acts = Acts::default();
        state.set_limit(1, &mut acts);
        assert_eq!((called(&acts), state.stats(1).idle), (vec![1, 2], 1));
        assert_eq!([1, 2].map(|n| next(&mut state, &workers[n])), ["exit", "exit"]);
        assert_eq!((state.staying(), state.seats.len()), (1, 3));
        let mut acts = Acts::default();
        for worker in &workers[1..] {
            assert!(!state.left(worker, true, &mut acts));
        }
        assert_eq!(
            (state.staying(), state.seats.len(), next(&mut state, &workers[0])),
            (1, 1, "sleep")
        );
        state.least = 1;
        assert!(!state.leaves_idle(&workers[0]), "the pool needs it");
        state.least = 0;
        assert!(!state.leaves_idle(&workers[1]), "it does not sleep");
        assert!(state.leaves_idle(&workers[0]));
        assert_eq!((state.staying(), state.stats(1).idle), (0, 0));
        assert!(!state.left(&workers[0], true, &mut acts));
        assert!(state.seats.is_empty() && state.staying() == 0);
    }

    #[test]
    fn a_worker_that_was_dropped_leaves_its_tasks_to_others_if_there_are_any() {
        let mut state = pool(2, false);
        let [first, second] = [(); 2].map(|()| worker(&mut state));
        assert_eq!(next(&mut state, &second), "sleep");
        assert!(push(&mut state, entry(Priority::Normal)).is_empty());
        let mut acts = Acts::default();
        assert!(!state.left(&first, false, &mut acts));
        assert_eq!(called(&acts), [1]);
        assert!(state.left(&second, false, &mut Acts::default()), "no worker is left");
    }

    #[test]
    fn an_awaited_task_starts_on_a_lent_slot_with_a_thread_beyond_the_limit() {
        let mut state = pool(1, false);
        let first = worker(&mut state);
        queue(&mut state, entry(Priority::Normal));
        assert_eq!(next(&mut state, &first), "run");
        queue(&mut state, entry(Priority::High));
        let task = ClosureCell::of(|| (), Caller::current(), None);
        queue(&mut state, Entry::of(Arc::clone(&task) as _));
        let number = state.queue.await_it(Entry::of(task as _));
        let mut acts = Acts::default();
        assert!(state.park(&mut acts) && acts.grow, "the one slot is lent");
        let second = worker(&mut state);
        assert_eq!(next(&mut state, &second), "run on a lent slot");
        assert!(state.queue.remove(Key::Awaited(number)).is_none());
        assert_eq!(
            (state.stats(1).queued, state.slots.free(), state.slots.lent()),
            (1, 0, 0)
        );
        state.resume();
        let mut counts = Counts {
            slot: Some(true),
            ..Counts::default()
        };
        counts.count(Ran::Panicked);
        state.count(counts, &mut Acts::default());
        assert_eq!((state.stats(1).panicked, next(&mut state, &second)), (1, "sleep"));
        end(&mut state);
        assert_eq!(next(&mut state, &first), "run", "the dead entry is behind it");
        end(&mut state);
        let (step, acts) = next_of(&mut state, &first, false);
        assert_eq!((step, acts.dead.len(), state.stats(1).unfinished), ("sleep", 1, 0));
    }

    #[test]
    fn as_many_tasks_park_as_leave_a_thread() {
        let mut state = pool(2, false);
        for n in 0..SPARES + 1 {
            let task = ClosureCell::of(|| (), Caller::current(), None);
            queue(&mut state, Entry::of(Arc::clone(&task) as _));
            state.queue.await_it(Entry::of(task as _));
            let worker = worker(&mut state);
            assert!(next(&mut state, &worker).starts_with("run"), "{n}");
            assert!(state.park(&mut Acts::default()), "{n}");
        }
        assert!(!state.park(&mut Acts::default()));
        assert!(state.may_grow() && state.surplus() == 0);
        state.resume();
        assert!(state.park(&mut Acts::default()));
        // The threads of tasks that have waited stay for those that wait next.
        for _ in 0..SPARES {
            state.resume();
        }
        assert!(!state.may_grow() && state.surplus() == 0);
        state.set_limit(2, &mut Acts::default());
        assert_eq!(state.surplus(), SPARES - 2);
    }

    /// A pool with a task for which the second of its workers asks, while the first sleeps.
    fn asking() -> (Threaded, [Worker; 2]) {
        let mut state = pool(2, true);
        let workers = [(); 2].map(|()| worker(&mut state));
        let steps = workers.each_ref().map(|worker| next(&mut state, worker));
        assert_eq!(steps, ["sleep", "sleep"]);
        assert_eq!(called(&push(&mut state, entry(Priority::Normal))), [1]);
        assert_eq!(next(&mut state, &workers[1]), "ask");
        (state, workers)
    }

    #[test]
    fn one_worker_asks_for_the_first_task_and_is_called_when_another_is_first() {
        let (mut state, [first, second]) = asking();
        assert!(
            push(&mut state, entry(Priority::Normal)).is_empty(),
            "the same is first"
        );
        assert_eq!(called(&push(&mut state, entry(Priority::High))), [1]);
        let mut acts = Acts::default();
        let key = state.asks(&second, &mut acts).unwrap();
        assert!(
            state
                .queue
                .get(key)
                .is_some_and(|entry| entry.priority() == Priority::High)
        );
        assert!(
            state
                .admitted(|entry| entry.priority() == Priority::Normal, &mut acts)
                .is_none()
        );
        assert!(
            state
                .admitted(|entry| entry.priority() == Priority::High, &mut acts)
                .is_some()
        );
        assert_eq!(called(&acts), [0], "the next asks");
        assert_eq!(next(&mut state, &first), "ask");
        let (mut acts, key) = (Acts::default(), state.asks(&first, &mut Acts::default()).unwrap());
        assert!(
            state
                .refused(&first, key, &mut acts)
                .is_some_and(|entry| !entry.claim() || entry.is_common())
        );
        assert_eq!(
            (state.refused, state.stats(2).unfinished, state.stats(2).queued),
            (1, 2, 1)
        );
        state.dropped(1, &mut acts);
        assert_eq!((state.refused, state.stats(2).unfinished), (0, 2));
        assert_eq!(next(&mut state, &first), "ask");
        assert!(!state.left(&first, false, &mut Acts::default()));
        assert_eq!(next(&mut state, &second), "ask", "a dropped asker asks no more");
    }

    #[test]
    fn late_and_cancelled_tasks_are_taken_out_on_the_way() {
        let mut state = pool(1, false);
        let first = worker(&mut state);
        let task = ClosureCell::of(|| (), Caller::current(), None);
        queue(&mut state, Entry::of(Arc::clone(&task) as _));
        queue(&mut state, entry(Priority::High));
        queue(&mut state, entry(Priority::Normal));
        let mut acts = Acts::default();
        assert!(state.cancel(&*task, &mut acts) && !state.cancel(&*task, &mut acts));
        assert_eq!(
            (state.refused, state.stats(1).queued, state.stats(1).unfinished),
            (1, 2, 2)
        );
        let is_late = |entry: &Entry<'_>| entry.priority() == Priority::High;
        assert!(matches!(state.next(&first, false, is_late, &mut acts), Next::Again));
        assert_eq!((acts.late.len(), acts.dead.len(), state.refused), (1, 0, 2));
        let (step, acts) = next_of(&mut state, &first, false);
        assert_eq!((step, acts.dead.len(), state.stats(1).queued), ("run", 1, 0));
    }

    #[test]
    fn a_full_queue_evicts_the_oldest_of_the_lowest_priority() {
        let mut state = pool(1, false);
        for priority in [Priority::High, Priority::Low, Priority::Normal] {
            queue(&mut state, entry(priority));
        }
        let order = [(); 3].map(|()| state.evict(&mut Acts::default()).unwrap().priority());
        assert_eq!(order, [Priority::Low, Priority::Normal, Priority::High]);
        assert!(state.evict(&mut Acts::default()).is_none());
        assert_eq!(
            (state.stats(1).queued, state.stats(1).unfinished, state.refused),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_closed_pool_ends_its_workers_when_the_queue_is_empty_and_a_stopped_one_at_once() {
        let mut state = pool(2, false);
        let [first, second] = [(); 2].map(|()| worker(&mut state));
        assert_eq!(
            (next(&mut state, &first), next(&mut state, &second)),
            ("sleep", "sleep")
        );
        queue(&mut state, entry(Priority::Normal));
        queue(&mut state, entry(Priority::Normal));
        let mut acts = Acts::default();
        state.close(&mut acts);
        assert!(state.phase == Phase::Draining && called(&acts) == [0]);
        assert_eq!(next(&mut state, &first), "run");
        let task = ClosureCell::of(|| (), Caller::current(), None);
        queue(&mut state, Entry::of(Arc::clone(&task) as _));
        assert!(task.claim());
        let mut acts = Acts::default();
        let unstarted = state.stop(&mut acts);
        assert_eq!(
            (unstarted.len(), acts.dead.len(), state.phase == Phase::Stopped),
            (1, 1, true)
        );
        assert_eq!((next(&mut state, &second), next(&mut state, &first)), ("exit", "exit"));
        assert!(!state.wants_thread());
    }

    /// Given two cells in one space of a lane, of which both, one, or none are live, when the only worker could not be started, then the
    /// pool ends if a task is left.
    #[test]
    fn a_worker_that_could_not_be_started_leaves_live_tasks_behind() {
        for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut state = pool(1, false);
            for claimed in [first, second] {
                let task = ClosureCell::of(|| (), Caller::current(), None);
                assert!(!claimed || task.claim());
                queue(&mut state, Entry::of(task as _));
            }
            let worker = worker(&mut state);
            assert_eq!(state.left(&worker, false, &mut Acts::default()), !(first && second));
        }
    }

    #[test]
    fn the_workers_of_a_closed_pool_are_called_when_its_last_task_was_admitted() {
        let (mut state, [first, _asker]) = asking();
        let mut acts = Acts::default();
        state.close(&mut acts);
        assert_eq!((called(&acts), next(&mut state, &first)), (vec![0, 1], "sleep"));
        let mut acts = Acts::default();
        assert!(state.admitted(|_| true, &mut acts).is_some());
        assert_eq!((called(&acts), next(&mut state, &first)), (vec![0], "exit"));
    }
}
