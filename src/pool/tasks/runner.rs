//! A runner: gets a slot, takes a task, polls it to its end, and again.

use super::core::{Bench, Core, Found};
use super::entry::Entry;
use crate::pool::cell::Ran;
use crate::pool::error::TaskError;
use crate::pool::gate::{Waiter, finish, poll_admitting};
use crate::pool::hooks::drop_quietly;
use crate::pool::lanes::Ranked;
use crate::pool::slot::Slot;
use crate::semaphore::{InTurn, SemaphorePermit};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

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
    let mut done = None;
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
            found => {
                books.busy = true;
                let ran = match found {
                    Found::Started(entry) => {
                        slot.note_start();
                        Some(go_on(&core, &bench, entry).await)
                    }
                    _ => run_held(&core, &bench, &mut slot).await,
                };
                match ran {
                    Some(ran) => done = Some(ran),
                    // It was taken out, and counted there.
                    None => books.busy = false,
                }
                // Futures that are ready at once must not keep the runtime from its other tasks.
                tokio::task::coop::consume_budget().await;
            }
        }
    }
    drop(slot);
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
                entry.task.refuse_aside(TaskError::Abandoned);
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

/// Starts and runs the task that this runner holds, once it is admitted. None: it was taken out meanwhile, or is back in
/// the queue, as the slot is with somebody else.
///
/// The task starts when there are both, the slot and the admission, and neither is waited for with the other in hand.
async fn run_held(core: &Arc<Core>, bench: &Bench, slot: &mut Slot<'_>) -> Option<Ran> {
    if seeded!("tasks_take_out_of_sight") {
        let held = bench.lock().held.take();
        bench.lock().held = held;
    }
    let late = |deadline| core.settings.clock.now() > deadline;
    let mut admitted = Ok(None);
    // What has ended, or is too late, asks for nothing.
    let asks = |entry: &Entry| entry.is_live() && !entry.deadline.is_some_and(late);
    let ask = || Some(bench.lock().held.as_ref().filter(|entry| asks(entry))?.ask());
    if let Some(gate) = &core.settings.gate
        && let Some(ask) = ask()
    {
        let mut admitting = gate.admit(ask, Waiter::IDLE);
        let polled = poll_fn(|cx| {
            if !slot.try_hold_again() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(admitted) = poll_admitting(&mut admitting, cx) {
                return Poll::Ready(Some(admitted));
            }
            let waker = cx.waker().clone();
            let mut place = bench.lock();
            if place.held.is_none() {
                return Poll::Ready(None);
            }
            let old = place.waker.replace(waker);
            drop(place);
            drop(old);
            if slot.stays() {
                cx.waker().wake_by_ref();
            } else if !seeded!("tasks_wait_at_the_gate_with_their_slot") {
                slot.give_up();
            }
            Poll::Pending
        })
        .await;
        drop_quietly(admitting);
        let Some(polled) = polled else {
            core.put_back(bench);
            slot.lose();
            return None;
        };
        admitted = polled;
    }
    // Under one lock: whoever ends the pool finds it held, or started.
    let (entry, started) = {
        let mut place = bench.lock();
        let entry = place.held.take();
        let mut starts = |entry: &Entry| match &mut admitted {
            Ok(_) if entry.deadline.is_some_and(late) => false,
            Ok(admitted) => entry.task.claim_to_poll(admitted),
            Err(_) => false,
        };
        let started = entry.as_ref().is_some_and(&mut starts);
        place.running = entry.as_ref().filter(|_| started).map(|entry| Arc::clone(&entry.task));
        (entry, started)
    };
    let Some(entry) = entry else {
        // Taken out: the admission is given back.
        finish(admitted.unwrap_or(None), Ran::Gone);
        return None;
    };
    core.room.give_back(1, u64::from(entry.weight()));
    match admitted {
        Ok(_) if started => {}
        Ok(admitted) => {
            finish(admitted, Ran::Gone);
            if entry.task.refuse(TaskError::Expired) {
                core.state.lock().stats.expired += 1;
            }
        }
        Err(why) => {
            if entry.task.refuse(why) {
                core.state.lock().stats.refused += 1;
            }
        }
    }
    slot.note_start();
    Some(run_claimed(core, bench, entry, started).await)
}

/// Goes on with a task that has started before, and was run in passing.
async fn go_on(core: &Arc<Core>, bench: &Bench, entry: Entry) -> Ran {
    let claimed = entry.claim_started();
    run_claimed(core, bench, entry, claimed).await
}

/// Polls the task that stands as running, if it is this runner's.
async fn run_claimed(core: &Arc<Core>, bench: &Bench, entry: Entry, claimed: bool) -> Ran {
    let ran = if claimed {
        poll_fn(|cx| core.poll(&*entry.task, cx)).await
    } else {
        Ran::Gone
    };
    let task = bench.lock().running.take();
    drop_quietly(task);
    // The handle may be gone: then this drops the result.
    drop_quietly(entry);
    ran
}
