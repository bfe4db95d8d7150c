//! A runner: gets a slot, takes a task, polls it to its end, and again.

use super::core::{Bench, Core, Found};
use super::entry::Entry;
use crate::limiter::Outcome;
use crate::pool::cell::Ran;
use crate::pool::error::TaskError;
use crate::pool::hooks::drop_quietly;
use crate::pool::slot::Slot;
use crate::semaphore::{InTurn, SemaphorePermit};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// After so many tasks a sub-pool lets the other tasks of the pool above have the runner.
const QUANTUM: u32 = 16;

/// What must be put in order when a runner ends, also when the runtime drops it.
struct Books {
    core: Arc<Core>,
    bench: Arc<Bench>,
    searching: bool,
    /// It has taken a task and not told that it has ended.
    busy: bool,
    in_order: bool,
}

impl Drop for Books {
    fn drop(&mut self) {
        let (running, held) = {
            let mut place = self.bench.lock();
            (place.running.take(), place.held.take())
        };
        for task in running.into_iter().chain(held.map(|entry| entry.task)) {
            task.abort(TaskError::Abandoned);
        }
        let Self { core, bench, .. } = self;
        core.left(bench, self.searching, self.busy, self.in_order);
    }
}

/// The books are there before the first poll: it may never come.
pub(super) fn run(core: Arc<Core>, bench: Arc<Bench>) -> impl Future<Output = ()> + Send {
    work(Books {
        core,
        bench,
        // Whoever started it called it to look.
        searching: true,
        busy: false,
        in_order: false,
    })
}

async fn work(mut books: Books) {
    let (core, bench) = (Arc::clone(&books.core), Arc::clone(&books.bench));
    let mut slot = Slot::none_of(&core.settings.slots, core.settings.shared_slots);
    let (mut done, mut started) = (None, 0);
    loop {
        if !slot.may_keep() {
            slot.give_up();
        }
        if !slot.is_held() && !slot.try_hold() {
            // What was done is told before a wait.
            if let Some(ran) = done.take() {
                core.ended(ran);
                books.busy = false;
            }
            match wait_for_slot(&core, &bench).await {
                Some(permit) => slot.hold(permit),
                None => break,
            }
        }
        let told = done.take();
        let found = core.take(&bench, &mut books.searching, told);
        books.busy = false;
        match found {
            Found::Exit => break,
            Found::Nothing => {
                slot.give_up();
                called(&bench).await;
                // Whoever called has counted this runner among those that look.
                books.searching = true;
            }
            Found::Entry(entry) => {
                books.busy = true;
                started += 1;
                slot.note_start();
                match run_entry(&core, &bench, entry).await {
                    Some(ran) => done = Some(ran),
                    // It was taken out, and counted there.
                    None => books.busy = false,
                }
                // Whoever leaves calls the next, who stands in line above.
                if core.above().is_some() && (started >= QUANTUM || core.is_pushed_out()) {
                    break;
                }
                // Futures that are ready at once must not keep the runtime from its other tasks.
                tokio::task::coop::consume_budget().await;
            }
        }
    }
    drop(slot);
    if core.above().is_some() {
        core.call_relatives();
    }
    if let Some(ran) = done {
        core.ended(ran);
        books.busy = false;
    }
    books.in_order = true;
}

/// A slot, in turn. None when the runner is to end instead.
async fn wait_for_slot<'a>(core: &'a Arc<Core>, bench: &Bench) -> Option<SemaphorePermit<'a>> {
    let mut acquire = pin!(InTurn::at(&*core.settings.slots));
    let acquired = poll_fn(|cx| match acquire.as_mut().poll(cx) {
        Poll::Ready(acquired) => Poll::Ready(Some(acquired)),
        Poll::Pending => {
            // Left before the look: whoever ends the pool after it calls.
            let waker = cx.waker().clone();
            let old = bench.lock().waker.replace(waker);
            drop(old);
            if core.should_exit() {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    });
    match acquired.await {
        Some(Some(slot)) => Some(slot),
        Some(None) => {
            // Whoever closes the slots ends the pool, and nothing that is queued can start.
            for entry in core.stop() {
                entry.task.refuse(TaskError::Abandoned);
            }
            None
        }
        None => None,
    }
}

async fn called(bench: &Bench) {
    poll_fn(|cx| {
        let waker = cx.waker().clone();
        let mut place = bench.lock();
        if place.called {
            return Poll::Ready(());
        }
        let old = place.waker.replace(waker);
        drop(place);
        drop(old);
        Poll::Pending
    })
    .await;
}

/// Runs a task that has left the queue. None: it was taken out again at the gate.
async fn run_entry(core: &Arc<Core>, bench: &Bench, entry: Entry) -> Option<Ran> {
    let mut admission = None;
    let entry = match &core.settings.gate {
        Some(gate) if entry.is_waiting() => {
            let ask = entry.ask();
            bench.lock().held = Some(entry);
            let mut admitting = gate.admit(ask);
            let admitted = poll_fn(|cx| {
                let polled = catch_unwind(AssertUnwindSafe(|| admitting.as_mut().poll(cx)));
                match polled {
                    Ok(Poll::Ready(admitted)) => Poll::Ready(admitted.map_err(TaskError::Refused)),
                    Err(payload) => Poll::Ready(Err(TaskError::Panicked(payload))),
                    Ok(Poll::Pending) => {
                        let waker = cx.waker().clone();
                        let mut place = bench.lock();
                        if place.held.is_none() {
                            return Poll::Ready(Err(TaskError::Cancelled));
                        }
                        let old = place.waker.replace(waker);
                        drop(place);
                        drop(old);
                        Poll::Pending
                    }
                }
            })
            .await;
            // It leaves the policy's line, and others move up.
            drop_quietly(admitting);
            let held = bench.lock().held.take();
            let Some(entry) = held else {
                // It was taken out: the admission is given back by its drop.
                drop_quietly(admitted);
                return None;
            };
            match admitted {
                Ok(admitted) => admission = Some(admitted),
                Err(why) => {
                    core.room.give_back(1, u64::from(entry.weight()));
                    entry.task.refuse(why);
                    return Some(Ran::Gone);
                }
            }
            entry
        }
        _ => entry,
    };
    if entry.is_waiting() {
        core.room.give_back(1, u64::from(entry.weight()));
        if entry
            .deadline
            .is_some_and(|deadline| core.settings.clock.now() > deadline)
        {
            if entry.task.refuse(TaskError::Expired) {
                core.state.lock().stats.expired += 1;
            }
            return Some(Ran::Gone);
        }
        if !entry.task.claim() {
            return Some(Ran::Gone);
        }
    } else if !entry.claim_started() {
        return Some(Ran::Gone);
    }
    bench.lock().running = Some(Arc::clone(&entry.task));
    let ran = poll_fn(|cx| core.poll(&*entry.task, cx)).await;
    let task = bench.lock().running.take();
    drop_quietly(task);
    if let Some(admission) = admission {
        admission.finish(match ran {
            Ran::Done => Outcome::Success,
            Ran::Panicked => Outcome::Failure,
            Ran::Gone => Outcome::Ignored,
        });
    }
    // A runner of a sub-pool is no task.
    let ran = if entry.is_errand() { Ran::Gone } else { ran };
    // The handle may be gone: then this drops the result.
    drop_quietly(entry);
    Some(ran)
}
