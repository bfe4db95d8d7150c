//! Admission item by item, each by a policy of its own.
//!
//! Items of one policy wait in a lane. The first of a lane waits for the policy, the others wait behind it, so that each policy
//! has admitted at most one item that no runner has taken yet.

use crate::core::ask::Ask;
use crate::pool::{Admitted, Gate, TaskError, poll_admitting};
use futures::Stream;
use futures::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An item with its admission.
pub(super) type Admittable<I> = (I, Result<Admitted, TaskError>);

/// The policy of an item, with its identity, and what it is asked for.
pub(super) type Choice = (usize, Arc<dyn Gate>, Ask);

/// The items behind the first of a policy.
type Lane<I> = VecDeque<(I, Arc<dyn Gate>, Ask)>;

/// The items of `source`, in the order in which their policies admit or refuse them.
pub(super) struct AdmitEach<S: Stream, F> {
    source: Pin<Box<S>>,
    choose: F,
    /// The most items that wait, and how many do.
    most: usize,
    waiting: usize,
    ended: bool,
    /// The items behind the first of each policy.
    lanes: HashMap<usize, Lane<S::Item>>,
    first: FuturesUnordered<First<S::Item>>,
}

/// The wait of the first item of a lane for its policy.
type First<I> = Pin<Box<dyn Future<Output = (usize, Option<I>, Result<Admitted, TaskError>)> + Send>>;

impl<S: Stream<Item: Send + 'static>, F> AdmitEach<S, F> {
    pub(super) fn new(source: S, most: usize, choose: F) -> Self {
        Self {
            source: Box::pin(source),
            choose,
            most: most.max(1),
            waiting: 0,
            ended: false,
            lanes: HashMap::new(),
            first: FuturesUnordered::new(),
        }
    }

    fn wait(&mut self, lane: usize, item: S::Item, gate: &dyn Gate, ask: Ask) {
        let (mut admitting, mut item) = (gate.admit(ask), Some(item));
        self.first.push(Box::pin(poll_fn(move |cx| {
            poll_admitting(&mut admitting, cx).map(|admitted| (lane, item.take(), admitted))
        })));
    }
}

/// Nothing is pinned in it but what has a box of its own.
impl<S: Stream, F> Unpin for AdmitEach<S, F> {}

impl<S: Stream<Item: Send + 'static>, F: FnMut(&S::Item) -> Choice> Stream for AdmitEach<S, F> {
    type Item = Admittable<S::Item>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.ended && this.waiting < this.most {
            match this.source.as_mut().poll_next(cx) {
                Poll::Ready(Some(item)) => {
                    let (lane, gate, ask) = (this.choose)(&item);
                    this.waiting += 1;
                    match this.lanes.get_mut(&lane) {
                        Some(behind) => behind.push_back((item, gate, ask)),
                        None => {
                            this.lanes.insert(lane, VecDeque::new());
                            this.wait(lane, item, &*gate, ask);
                        }
                    }
                }
                Poll::Ready(None) => this.ended = true,
                Poll::Pending => break,
            }
        }
        match Pin::new(&mut this.first).poll_next(cx) {
            Poll::Ready(Some((lane, item, admitted))) => {
                this.waiting -= 1;
                match this.lanes.get_mut(&lane).and_then(VecDeque::pop_front) {
                    Some((item, gate, ask)) => this.wait(lane, item, &*gate, ask),
                    None => drop(this.lanes.remove(&lane)),
                }
                Poll::Ready(item.map(|item| (item, admitted)))
            }
            Poll::Ready(None) if this.ended => Poll::Ready(None),
            // The source wakes, or the policy of a first item.
            _ => Poll::Pending,
        }
    }
}
