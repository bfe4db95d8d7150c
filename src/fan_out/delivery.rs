//! The results of a fan-out between the runners and the consumer, under a lock of their own: a runner that delivers does not compete with
//! one that takes items, and the consumer takes all results at once.
//!
//! - A step that brings a result, or the end, takes the waker of the consumer and returns it. So a consumer that waits is woken once.
//! - Here it is decided which failure ends the fan-out, and in [`State`](super::state::State) which items start. The two locks are never held
//!   together. The runner that delivers a failure carries it to the state, and the step that ends the source carries the number of results here.
//!   Meanwhile more items may start. Their results come behind the failure.

use super::state::Outcome;
use crate::pool::TaskError;
use std::collections::VecDeque;
use std::task::{Poll, Waker};

pub(super) struct Delivery<T> {
    ordered: bool,
    /// The item whose result has ended the fan-out. If ordered, it is the first such item.
    failed: Option<usize>,
    /// If ordered, the results from item `first` on, with gaps for those to come. Otherwise in the order of arrival.
    results: Due<T>,
    /// Results that the consumer has taken.
    first: usize,
    /// Results that runners have delivered.
    finished: usize,
    /// The number of all results, once the source has ended.
    last: Option<usize>,
    /// True once no further result is to come: the runtime has dropped a runner, or the consumer was dropped.
    closed: bool,
    consumer: Option<Waker>,
}

/// Results for the consumer. It meets no gap in what it has taken.
pub(super) type Due<T> = VecDeque<Option<Outcome<T>>>;

/// What a runner does after it has delivered a result.
#[must_use]
pub(super) struct Delivered<T> {
    pub(super) consumer: Option<Waker>,
    /// True if this result ends the fan-out.
    pub(super) fails: bool,
    /// The result, if the consumer does not get it.
    pub(super) dropped: Option<Outcome<T>>,
    /// Results that have been delivered.
    pub(super) finished: usize,
}

impl<T> Delivery<T> {
    pub(super) fn new(ordered: bool) -> Self {
        Self {
            ordered,
            failed: None,
            results: Due::new(),
            first: 0,
            finished: 0,
            last: None,
            closed: false,
            consumer: None,
        }
    }

    /// Keeps a result for the consumer. A failure is given out first unless the results are ordered.
    pub(super) fn deliver(&mut self, item: usize, outcome: Outcome<T>, fails: bool) -> Delivered<T> {
        self.finished += 1;
        let mut delivered = Delivered {
            consumer: None,
            fails: false,
            dropped: None,
            finished: self.finished,
        };
        if self.closed {
            delivered.dropped = Some(outcome);
            return delivered;
        }
        delivered.fails = fails && self.failed.is_none_or(|failed| self.ordered && item < failed);
        if self.ordered {
            let at = item - self.first;
            if self.results.len() <= at {
                self.results.resize_with(at + 1, || None);
            }
            self.results[at] = Some(outcome);
        } else if delivered.fails {
            self.results.push_front(Some(outcome));
        } else {
            self.results.push_back(Some(outcome));
        }
        if delivered.fails {
            self.failed = Some(item);
        }
        delivered.consumer = self.consumer.take();
        delivered
    }

    /// Ends the results after `last` of them.
    pub(super) fn end(&mut self, last: usize) -> Option<Waker> {
        self.last = Some(last);
        self.consumer.take()
    }

    /// Ends the results, some of which will not come: one error replaces these, or the first of them in front of a failure.
    pub(super) fn abort(&mut self) -> Option<Waker> {
        if !self.closed && self.last != Some(self.finished) {
            self.closed = true;
            if self.failed.is_none() {
                self.results.retain(Option::is_some);
                self.results.push_back(None);
            }
            for missing in &mut self.results {
                missing.get_or_insert(Err(TaskError::Aborted));
            }
        }
        self.consumer.take()
    }

    /// The consumer was dropped.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Moves results into `due`, which is empty, or takes the waker. Returns false if no result is to come.
    pub(super) fn poll_due(&mut self, due: &mut Due<T>, waker: &mut Option<Waker>) -> Poll<bool> {
        if self.ordered {
            while let Some(Some(_)) = self.results.front() {
                due.extend(self.results.pop_front());
            }
        } else {
            std::mem::swap(&mut self.results, due);
        }
        self.first += due.len();
        if !due.is_empty() || self.closed || self.last == Some(self.first) {
            return Poll::Ready(!due.is_empty());
        }
        std::mem::swap(&mut self.consumer, waker);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_numbers(ordered: bool) -> Delivery<i32> {
        Delivery::new(ordered)
    }

    /// Delivers an item's result, a failure if it is negative. Returns whether it ends the fan-out.
    fn fails(delivery: &mut Delivery<i32>, item: usize, result: i32) -> bool {
        let delivered = delivery.deliver(item, Ok(result), result < 0);
        assert!(delivered.dropped.is_none());
        delivered.fails
    }

    /// The results that are ready now, `None` for those of dropped runners, and whether more are to come.
    fn ready(delivery: &mut Delivery<i32>) -> (Vec<Option<i32>>, bool) {
        let (mut due, mut results) = (Due::new(), Vec::new());
        let mut waker = Some(Waker::noop().clone());
        loop {
            match delivery.poll_due(&mut due, &mut waker) {
                Poll::Ready(true) => results.extend(due.drain(..).map(|result| result.unwrap().ok())),
                Poll::Ready(false) => return (results, false),
                Poll::Pending => return (results, true),
            }
        }
    }

    /// In order, no result is given out before those in front of it.
    #[test]
    fn results_come_in_order_or_as_they_end() {
        for ordered in [true, false] {
            let mut delivery = of_numbers(ordered);
            assert!(!fails(&mut delivery, 1, 1));
            assert_eq!(
                ready(&mut delivery),
                (if ordered { vec![] } else { vec![Some(1)] }, true)
            );
            assert!(!fails(&mut delivery, 2, 2) && !fails(&mut delivery, 0, 0));
            let rest = if ordered {
                vec![Some(0), Some(1), Some(2)]
            } else {
                vec![Some(2), Some(0)]
            };
            assert_eq!(ready(&mut delivery), (rest, true));
            assert!(!fails(&mut delivery, 3, 3));
            assert_eq!(ready(&mut delivery), (vec![Some(3)], true));
            assert!(delivery.end(4).is_some(), "the consumer left its waker");
            assert_eq!(ready(&mut delivery), (vec![], false));
        }
    }

    /// The end of the source, which comes before the last results.
    #[test]
    fn the_last_result_ends_the_stream() {
        let mut delivery = of_numbers(false);
        assert!(delivery.end(2).is_none());
        assert!(!fails(&mut delivery, 0, 0));
        assert_eq!(ready(&mut delivery), (vec![Some(0)], true));
        assert!(delivery.deliver(1, Ok(1), false).consumer.is_some());
        assert_eq!(ready(&mut delivery), (vec![Some(1)], false));
    }

    /// Unless the results are ordered, the first failure is given out first, and no other counts.
    #[test]
    fn the_first_failure_counts() {
        let mut delivery = of_numbers(false);
        assert!(!fails(&mut delivery, 0, 0));
        assert!(fails(&mut delivery, 3, -3));
        assert!(!fails(&mut delivery, 1, -1));
        assert_eq!(ready(&mut delivery).0, [Some(-3), Some(0), Some(-1)]);
    }

    /// In order, the failure counts that is in front.
    #[test]
    fn in_order_a_failure_counts_only_in_front_of_another() {
        let mut delivery = of_numbers(true);
        assert!(fails(&mut delivery, 2, -2));
        assert!(!fails(&mut delivery, 3, -3));
        assert!(fails(&mut delivery, 1, -1));
        assert!(!fails(&mut delivery, 0, 0));
        assert_eq!(ready(&mut delivery).0[..2], [Some(0), Some(-1)]);
    }

    /// A runner that was dropped leaves an error for what will not come: at the end, or in its place if that is in front of a failure.
    #[test]
    fn one_error_replaces_what_will_not_come() {
        for (ordered, failure, expected) in [
            (false, 2, vec![Some(2), None]),
            (true, 2, vec![Some(2), None]),
            (true, -2, vec![None, None, Some(-2)]),
        ] {
            let mut delivery = of_numbers(ordered);
            let _ = delivery.deliver(2, Ok(failure), failure < 0);
            delivery.abort();
            delivery.abort();
            let late = delivery.deliver(1, Ok(1), true);
            assert!(late.dropped.is_some() && !late.fails && late.consumer.is_none());
            assert_eq!(ready(&mut delivery), (expected, false));
        }
    }

    /// A consumer that waits learns it, and one that is gone gets nothing.
    #[test]
    fn the_end_wakes_the_consumer_unless_it_is_gone() {
        let mut delivery = of_numbers(false);
        assert_eq!(ready(&mut delivery), (vec![], true));
        assert!(delivery.abort().is_some());
        let mut delivery = of_numbers(false);
        delivery.close();
        assert!(delivery.deliver(0, Ok(0), true).dropped.is_some());
        assert!(delivery.abort().is_none());
        assert_eq!(ready(&mut delivery), (vec![], false));
    }

    /// A runner that was dropped after all results had come changes nothing.
    #[test]
    fn a_runner_that_was_dropped_late_leaves_no_error() {
        let mut delivery = of_numbers(true);
        assert!(!fails(&mut delivery, 0, 0));
        delivery.end(1);
        delivery.abort();
        assert_eq!(ready(&mut delivery), (vec![Some(0)], false));
    }
}
