//! What the lock of a fan-out guards. Plain data.
//!
//! - The source is in the hands of one runner at a time: of a *looker*, who takes it out, asks it for an item, and puts
//!   it back.
//! - A runner that has got an item calls the next to look, when nobody looks any more: wakes one that idles, or starts
//!   one. So as many run as there is work for, and a burst of short futures is run by few.
//! - A runner idles when the source is in other hands, or there is no room for another result. Hence the invariant:
//!   somebody idles, the source has not ended and there is room => somebody looks.

use super::progress::Progress;
use crate::pool::{AbortHandle, TaskError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;

/// Where items come from, and what makes futures of them.
pub(super) struct Source<S, F> {
    pub(super) stream: Pin<Box<S>>,
    pub(super) f: F,
}

/// What came of an item.
pub(super) type Outcome<T> = Result<T, TaskError>;

pub(super) struct State<S, F, T> {
    /// None while it is in a runner's hands, and once it has ended.
    pub(super) source: Option<Box<Source<S, F>>>,
    pub(super) ended: bool,
    /// A result has ended it.
    pub(super) failed: bool,
    /// The runtime has dropped a runner: what is here is all there will be.
    pub(super) died: bool,
    /// Nobody wants results any more.
    pub(super) stopped: bool,
    /// Runners that look for an item, or have been called to.
    pub(super) looking: usize,
    pub(super) idle: Vec<(Arc<AtomicBool>, Waker)>,
    pub(super) runners: Vec<AbortHandle>,
    /// How many runners there are, or are about to be.
    pub(super) alive: usize,
    /// Results, in order from `first` on, with gaps where those are still to come; as they came, without gaps, else.
    pub(super) results: VecDeque<Option<Outcome<T>>>,
    pub(super) first: usize,
    /// Items that were taken whose results have not been given out.
    pub(super) outstanding: usize,
    pub(super) consumer: Option<Waker>,
    pub(super) progress: Progress,
}

/// Who is called to look.
pub(super) enum Help {
    Nobody,
    Wake(Waker),
    Start,
}

impl<S, F, T> State<S, F, T> {
    pub(super) fn new(source: Source<S, F>, total: Option<usize>) -> Self {
        Self {
            source: Some(Box::new(source)),
            ended: false,
            failed: false,
            died: false,
            stopped: false,
            looking: 0,
            idle: Vec::new(),
            runners: Vec::new(),
            alive: 0,
            results: VecDeque::new(),
            first: 0,
            outstanding: 0,
            consumer: None,
            progress: Progress {
                total,
                ..Progress::default()
            },
        }
    }

    /// Calls somebody to look, if nobody does and there is something to look for.
    pub(super) fn call_for_help(&mut self, limit: usize, window: usize) -> Help {
        if self.looking > 0 || self.ended || self.outstanding >= window {
            return Help::Nobody;
        }
        if let Some((called, waker)) = self.idle.pop() {
            // Relaxed: written and read under the lock.
            called.store(true, std::sync::atomic::Ordering::Relaxed);
            self.looking += 1;
            return Help::Wake(waker);
        }
        if self.alive < limit {
            self.alive += 1;
            self.looking += 1;
            return Help::Start;
        }
        Help::Nobody
    }

    /// Notes that an item was taken, and gives it its number.
    pub(super) fn took(&mut self) -> usize {
        let index = self.progress.taken;
        self.progress.taken += 1;
        self.outstanding += 1;
        index
    }

    /// Keeps a result for the consumer. One that `ends` goes first, where there is no order. It comes back when nobody
    /// wants it any more.
    pub(super) fn keep(&mut self, index: usize, outcome: Outcome<T>, ordered: bool, ends: bool) -> Option<Outcome<T>> {
        if self.stopped || self.died {
            return Some(outcome);
        }
        self.progress.finished += 1;
        if !ordered {
            if ends {
                self.results.push_front(Some(outcome));
            } else {
                self.results.push_back(Some(outcome));
            }
            return None;
        }
        let at = index - self.first;
        while self.results.len() <= at {
            self.results.push_back(None);
        }
        self.results[at] = Some(outcome);
        None
    }

    /// Moves what is due into `due`, in order.
    pub(super) fn give(&mut self, due: &mut VecDeque<Outcome<T>>) {
        while let Some(Some(_)) = self.results.front() {
            self.first += 1;
            due.extend(self.results.pop_front().flatten());
        }
    }

    /// True when no result is to come.
    pub(super) fn is_over(&self) -> bool {
        self.stopped || (self.died && self.results.is_empty()) || (self.ended && self.progress.taken == self.first)
    }
}
