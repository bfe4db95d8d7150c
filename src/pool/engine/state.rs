//! What the lock of a pool guards: the queue, the slots, and the workers. Each transition is plain data; what is to be done after
//! the lock comes back in [`Acts`].
//!
//! - A worker that is called looks for a task. As many look as tasks can start: one that was called may stand behind a task that
//!   keeps its runtime's thread.
//! - A worker falls asleep under the lock, after it has found nothing there that can start. So a transition either comes before,
//!   and the worker sees what it made startable, or after, and calls it.
//! - Where tasks are admitted by a policy, or by slots that others share, one worker at a time asks, for the task that is first. The
//!   task stays in the queue meanwhile. Whatever changes which one is first calls the asker.

use super::queue::{Key, Queue};
use super::seat::Seat;
use super::slots::Slots;
use crate::pool::cell::Ran;
use crate::pool::entry::Priority;
use crate::pool::quiet::Quiet;
use crate::pool::state::Phase;
use crate::pool::stats::PoolStats;
use std::sync::Arc;
use std::task::Waker;

/// How many tasks that are too late are taken out in one transition.
const LATE: usize = 64;

pub(in crate::pool) struct State<E> {
    queue: Queue<E>,
    slots: Slots,
    seats: Vec<Arc<Seat>>,
    idle: Vec<Arc<Seat>>,
    /// Workers that are about to exit: two must not in the place of one.
    leaving: usize,
    /// Workers that look for a task, or have been called to.
    looks: usize,
    /// Something else than slots admits tasks: workers ask it.
    gated: bool,
    /// The worker that asks, and for which entry.
    asker: Option<(Arc<Seat>, Option<Key>)>,
    pub(in crate::pool) phase: Phase,
    pub(in crate::pool) quiet: Quiet,
    pub(in crate::pool) stats: PoolStats,
}

/// What is to be done after the lock.
#[must_use]
#[derive(Default)]
pub(in crate::pool) struct Acts {
    pub(in crate::pool) call: Vec<Arc<Seat>>,
    /// Workers to be started.
    pub(in crate::pool) start: Vec<Arc<Seat>>,
    pub(in crate::pool) quiet: Vec<Waker>,
}

/// What a worker does next.
pub(in crate::pool) enum Next<E> {
    Run(E),
    /// It asks what admits tasks.
    Ask,
    /// It looks again: many were late.
    Again,
    Sleep,
    Exit,
}

impl<E> State<E> {
    pub(in crate::pool) fn new(limit: usize, gated: bool) -> Self {
        Self {
            queue: Queue::new(),
            slots: Slots::new(limit),
            seats: Vec::new(),
            idle: Vec::new(),
            leaving: 0,
            looks: 0,
            gated,
            asker: None,
            phase: Phase::Running,
            quiet: Quiet::default(),
            stats: PoolStats::default(),
        }
    }

    /// How many tasks can start now.
    fn startable(&self) -> usize {
        let common = self.queue.len().min(self.slots.free());
        common.max(self.queue.awaited_len().min(self.slots.lent()))
    }

    /// The entry that is to start next.
    pub(in crate::pool) fn first(&self) -> Option<Key> {
        if self.slots.free() > 0 {
            self.queue.first()
        } else if self.slots.lent() > 0 {
            self.queue.first_awaited()
        } else {
            None
        }
    }

    pub(in crate::pool) fn get(&self, key: Key) -> Option<&E> {
        self.queue.get(key)
    }

    /// Calls or starts workers, as tasks can start for which none looks.
    pub(in crate::pool) fn call(&mut self, acts: &mut Acts) {
        if self.phase != Phase::Running && self.queue.len() == 0 && !seeded!("engine_drains_quietly") {
            self.call_idle(acts);
        }
        if let Some((asker, asks)) = &self.asker {
            if *asks != self.first() && !seeded!("engine_asks_for_what_was_first") {
                acts.call.push(Arc::clone(asker));
            }
            return;
        }
        let wanted = self.startable().min(if self.gated { 1 } else { usize::MAX });
        while self.looks < wanted {
            match self.idle.pop() {
                Some(seat) => self.calls(seat, acts),
                None => self.starts(acts),
            }
        }
    }

    fn calls(&mut self, seat: Arc<Seat>, acts: &mut Acts) {
        self.looks += 1;
        seat.lock().looks = true;
        acts.call.push(seat);
    }

    fn starts(&mut self, acts: &mut Acts) {
        let seat = Arc::<Seat>::default();
        self.looks += 1;
        seat.lock().looks = true;
        self.seats.push(Arc::clone(&seat));
        self.stats.peak_threads = self.stats.peak_threads.max(self.seats.len());
        acts.start.push(seat);
    }

    /// How many workers there are above the limit, those not counted whose tasks are parked.
    fn surplus(&self) -> usize {
        (self.seats.len() - self.leaving - self.slots.parked()).saturating_sub(self.slots.limit())
    }

    pub(in crate::pool) fn push(&mut self, entry: E, priority: Priority) -> Key {
        self.quiet.begun(1);
        self.stats.submitted += 1;
        self.queue.push(entry, priority)
    }

    /// What the worker does next. What `is_late` goes to `late`.
    pub(in crate::pool) fn next(
        &mut self,
        seat: &Arc<Seat>,
        is_late: impl Fn(&E) -> bool,
        late: &mut Vec<E>,
        acts: &mut Acts,
    ) -> Next<E> {
        self.looks_no_more(seat);
        let next = loop {
            match self.first() {
                _ if self.surplus() > 0 => break self.exit(),
                Some(_) if late.len() == LATE => {
                    self.looks_again(seat);
                    break Next::Again;
                }
                Some(key) if self.queue.get(key).is_some_and(&is_late) => {
                    self.stats.expired += 1;
                    late.extend(self.remove(key, acts));
                }
                Some(_) if self.gated && self.asker.is_some() => break self.sleep(seat),
                Some(key) if self.gated => {
                    self.asker = Some((Arc::clone(seat), Some(key)));
                    break Next::Ask;
                }
                Some(key) => match self.take(key, seat) {
                    Some(entry) => break Next::Run(entry),
                    None => unreachable!("what is first is queued"),
                },
                None if self.phase != Phase::Running && self.queue.len() == 0 => break self.exit(),
                None => break self.sleep(seat),
            }
        };
        self.call(acts);
        next
    }

    fn looks_no_more(&mut self, seat: &Arc<Seat>) {
        if std::mem::take(&mut seat.lock().looks) {
            if !seeded!("engine_looks_for_ever") {
                self.looks -= 1;
            }
        } else {
            // It was woken by a call from before it fell asleep.
            self.idle.retain(|idle| !Arc::ptr_eq(idle, seat));
        }
    }

    /// The worker is on its way to look: none is called in its place.
    fn looks_again(&mut self, seat: &Seat) {
        self.looks += 1;
        seat.lock().looks = true;
    }

    fn sleep(&mut self, seat: &Arc<Seat>) -> Next<E> {
        self.idle.push(Arc::clone(seat));
        Next::Sleep
    }

    fn exit(&mut self) -> Next<E> {
        self.leaving += 1;
        Next::Exit
    }

    /// Takes the entry out to start it. There is a slot.
    fn take(&mut self, key: Key, seat: &Seat) -> Option<E> {
        let entry = self.queue.take(key)?;
        seat.lock().borrows = self.slots.start();
        Some(entry)
    }

    /// The task that ran at this seat has ended.
    pub(in crate::pool) fn ended(&mut self, seat: &Seat, ran: Ran, acts: &mut Acts) {
        self.stats.finished += u64::from(ran != Ran::Gone);
        self.stats.panicked += u64::from(ran == Ran::Panicked);
        self.slots.end(seat.lock().borrows);
        self.finished(1, acts);
    }

    fn finished(&mut self, tasks: usize, acts: &mut Acts) {
        self.quiet.finished(tasks, &mut acts.quiet);
    }

    /// Takes the entry out of the queue: it will not start.
    pub(in crate::pool) fn remove(&mut self, key: Key, acts: &mut Acts) -> Option<E> {
        let entry = self.queue.remove(key)?;
        self.finished(1, acts);
        Some(entry)
    }

    /// Takes out what a full queue evicts first.
    pub(in crate::pool) fn evict(&mut self, acts: &mut Acts) -> Option<E> {
        let entry = self.remove(self.queue.last()?, acts)?;
        self.call(acts);
        Some(entry)
    }

    /// Takes out all that has not started. Nothing more starts.
    pub(in crate::pool) fn stop(&mut self, acts: &mut Acts) -> Vec<E> {
        self.phase = Phase::Stopped;
        let entries = self.queue.drain();
        self.finished(entries.len(), acts);
        self.call_all(acts);
        entries
    }

    /// No more tasks are taken in.
    pub(in crate::pool) fn close(&mut self, acts: &mut Acts) {
        self.phase = self.phase.max(Phase::Draining);
        if !seeded!("engine_closes_quietly") {
            self.call_all(acts);
        }
    }

    /// Every idle worker looks, and so does the asker.
    fn call_all(&mut self, acts: &mut Acts) {
        self.call_idle(acts);
        acts.call.extend(self.asker.iter().map(|(seat, _)| Arc::clone(seat)));
    }

    fn call_idle(&mut self, acts: &mut Acts) {
        for seat in std::mem::take(&mut self.idle) {
            self.calls(seat, acts);
        }
    }

    pub(in crate::pool) fn set_limit(&mut self, limit: usize, acts: &mut Acts) {
        self.slots.set_limit(limit);
        // Those above the limit look, and exit.
        let surplus = self.surplus().min(self.idle.len());
        for seat in self.idle.split_off(self.idle.len() - surplus) {
            self.calls(seat, acts);
        }
        if !seeded!("engine_resizes_quietly") {
            self.call(acts);
        }
    }

    // ---- tasks that wait ----

    pub(in crate::pool) fn park(&mut self, acts: &mut Acts) {
        self.slots.park();
        if !seeded!("engine_lends_quietly") {
            self.call(acts);
        }
    }

    /// The task goes on at once.
    pub(in crate::pool) fn resume(&mut self) {
        self.slots.resume();
    }

    pub(in crate::pool) fn await_it(&mut self, key: Key, acts: &mut Acts) {
        if self.queue.await_it(key) {
            self.call(acts);
        }
    }

    pub(in crate::pool) fn await_no_more(&mut self, key: Key, acts: &mut Acts) {
        self.queue.await_no_more(key);
        self.call(acts);
    }

    // ---- the asker ----

    /// For which entry the asker asks from now on. None: it asks no more.
    pub(in crate::pool) fn asks(&mut self, seat: &Arc<Seat>, acts: &mut Acts) -> Option<Key> {
        let first = self.first();
        self.asker = first.map(|key| (Arc::clone(seat), Some(key)));
        if first.is_none() {
            self.looks_again(seat);
            self.call(acts);
        }
        first
    }

    /// What was asked for is admitted: the entry starts, if it `fits` still, which is asked of the one that is first now.
    pub(in crate::pool) fn admitted(
        &mut self,
        seat: &Seat,
        fits: impl FnOnce(&E) -> bool,
        acts: &mut Acts,
    ) -> Option<E> {
        let key = self.first().filter(|&key| self.queue.get(key).is_some_and(fits))?;
        self.asker = None;
        let entry = self.take(key, seat);
        self.call(acts);
        entry
    }

    /// What was asked for is refused, or too late: the entry will not start, and the worker looks again.
    pub(in crate::pool) fn refused(&mut self, seat: &Seat, key: Key, acts: &mut Acts) -> Option<E> {
        self.asker = None;
        self.looks_again(seat);
        let entry = self.remove(key, acts);
        self.call(acts);
        entry
    }

    // ---- workers ----

    /// A worker has gone. True when it was dropped by its runtime and none is left for what is queued.
    pub(in crate::pool) fn left(&mut self, seat: &Arc<Seat>, in_order: bool, acts: &mut Acts) -> bool {
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
        if in_order {
            self.call(acts);
        }
        !in_order && self.seats.is_empty()
    }

    pub(in crate::pool) fn has_workers(&self) -> bool {
        !self.seats.is_empty()
    }

    pub(in crate::pool) fn workers(&self) -> &[Arc<Seat>] {
        &self.seats
    }

    pub(in crate::pool) fn stats(&self, limit: usize) -> PoolStats {
        PoolStats {
            threads: self.seats.len(),
            idle: self.idle.len(),
            limit,
            queued: self.queue.len(),
            unfinished: self.quiet.unfinished(),
            ..self.stats
        }
    }

    pub(in crate::pool) fn limit(&self) -> usize {
        self.slots.limit()
    }
}
