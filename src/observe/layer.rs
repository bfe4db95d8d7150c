//! A gate of a tower layer that is watched.

use super::observed::{Observed, Watch};
use crate::core::limiter::Limiter;
use crate::tower::{Admission, Gate, Head, KEY, LimitLayer, Refused};
use std::fmt;

/// A gate that tells what it does. Made by [`LimitLayer::observed`].
pub struct Observing<G> {
    gate: G,
    watch: Watch,
}

impl<G> fmt::Debug for Observing<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observing").finish_non_exhaustive()
    }
}

impl<L: Limiter> Refused<L> {
    fn watched(self, watch: &Watch) -> Refused<Observed<L>> {
        let Self { rejection, limiter } = self;
        Refused {
            rejection,
            limiter: limiter.map(|limiter| Observed::handle(limiter, watch.clone())),
        }
    }
}

impl<G: Gate<Limiter: Clone + Send>> Gate for Observing<G> {
    type Limiter = Observed<G::Limiter>;

    fn admit(&self, head: &Head<'_>) -> Admission<Self::Limiter> {
        let watch = &self.watch;
        match self.gate.admit(head) {
            Admission::Admitted(permit) => Admission::Admitted(watch.permit(permit, std::time::Duration::ZERO)),
            Admission::Exempt => Admission::Exempt,
            Admission::Refused(refused) => {
                watch.refused(&refused.rejection);
                Admission::Refused(refused.watched(watch))
            }
            Admission::Waiting(waiting) => {
                let (watch, wait) = (watch.clone(), watch.wait());
                Admission::Waiting(Box::pin(async move {
                    match waiting.await {
                        Ok(permit) => Ok(wait.admitted(permit)),
                        Err(refused) => {
                            wait.refused(&refused.rejection);
                            Err(refused.watched(&watch))
                        }
                    }
                }))
            }
        }
    }

    fn is_keyed(&self) -> bool {
        self.gate.is_keyed()
    }
}

impl<G: Gate<Limiter: Clone + Send>, C, R> LimitLayer<G, C, R> {
    /// Tells under `name`, a word of the program, of every request that is not exempt: see
    /// [`observe`](crate::observe). Install the recorder of `metrics` before.
    ///
    /// Refusals are counted by the names of legs, 31 of them; further ones are all `other`. Where there is a limiter for each
    /// key, all are, since their legs may be named by it, unless [`legs`](LimitLayer::legs) says which are not.
    ///
    /// # Panics
    /// When the layer has been cloned or used already.
    pub fn observed(self, name: &'static str) -> LimitLayer<Observing<G>, C, R> {
        self.map_gate(|gate| {
            let mut watch = Watch::new(name, None);
            if gate.is_keyed() {
                // A request without a key, and a map that is full.
                watch.only(&[KEY, "keyed"]);
            }
            Observing { gate, watch }
        })
    }
}

impl<G, C, R> LimitLayer<Observing<G>, C, R> {
    /// Counts refusals by these legs, words of the program, and by `other`.
    ///
    /// # Panics
    /// When the layer has been cloned or used already.
    #[must_use]
    pub fn legs(self, legs: &'static [&'static str]) -> Self {
        self.map_gate(|mut observing| {
            observing.watch.only(legs);
            observing
        })
    }
}
