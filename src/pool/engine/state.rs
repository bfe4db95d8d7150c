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
        while let Some(key) = self.queue.first()
            && let Some(member) = self.queue.get(key).and_then(Entry::member)
            && member.must_wait()
        {
            let member = Arc::clone(member);
            self.queue.set_aside(key).inspect(|&key| member.is_set_aside(key));
        }
    }

    /// Updates the group, if it has a limit, of a task that has ended, or will not start.
    #[inline]
    fn member_ends(&mut self, member: Option<&Membership>) {
        if let Some(member) = member
            && member.ends()
        {
            self.pass_place_on(member);
        }
    }

    fn pass_place_on(&mut self, member: &Membership) {
        if seeded!("group_limit_forgets_those_aside") {
            return member.pass_on(|_| false);
        }
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
            if let Some((asker, asks)) = &self.asker
                && *asks != first
                && !seeded!("engine_asks_for_what_was_first")
            {
                acts.call.push(Arc::clone(asker));
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
            if !seeded!("engine_looks_for_ever") {
                self.looks -= 1;
            }
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
        let mut unstarted = self.drain();
        // The second entries are dead, since the first ones come before.
        acts.dead = unstarted.extract_if(.., |entry| !is_listed(entry)).collect();
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
        if !seeded!("engine_closes_quietly") {
            self.call_idle(acts);
            self.call_asker(acts);
        }
    }

    /// Calls the asker, because another entry may be first although its key does not show it.
    pub(in crate::pool) fn call_asker(&mut self, acts: &mut Acts<K>) {
        if !seeded!("engine_asks_for_what_was_first") {
            acts.call.extend(self.asker.iter().map(|(seat, _)| Arc::clone(seat)));
        }
    }

    fn call_idle(&mut self, acts: &mut Acts<K>) {
        for seat in std::mem::take(&mut self.idle) {
            self.calls(seat, acts);
        }
    }

    pub(in crate::pool) fn set_limit(&mut self, limit: usize, acts: &mut Acts<K>) {
        self.slots.limit = limit;
        self.most_parked = self.slots.parked;
        if seeded!("engine_resizes_quietly") {
            return;
        }
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
        if !seeded!("engine_lends_quietly") {
            self.call(acts);
        }
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
    match seeded!("pool_runs_what_is_listed") {
        true => entry.is_live(),
        false => entry.claim(),
    }
}
