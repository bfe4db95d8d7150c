//! A layer that records its admissions and refusals.

use super::gate::{Admission, Gate, KEY};
use super::layer::LimitLayer;
use super::refused::Refused;
use super::request_parts::RequestParts;
use std::fmt;
use tollgate::Limiter;
use tollgate_observe::{Observed, Observer};

/// A gate that records its admissions and refusals. Made by [`LimitLayer::observed`].
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_http::{Gate, ImmediateGate, LimitLayer, ObservedGate};
/// let layer: LimitLayer<ObservedGate<ImmediateGate<Semaphore>>> =
///     LimitLayer::new(Arc::new(Semaphore::new(8))).observed("api").legs(&["semaphore"]);
/// assert!(std::mem::size_of_val(&layer) > 0);
/// ```
pub struct ObservedGate<G> {
    gate: G,
    observer: Observer,
}

impl<G> fmt::Debug for ObservedGate<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedGate").finish_non_exhaustive()
    }
}

fn observed<L: Limiter>(refused: Refused<L>, observer: &Observer) -> Refused<Observed<L>> {
    let Refused { refusal, limiter } = refused;
    Refused {
        refusal,
        limiter: limiter.map(|limiter| observer.wrap(limiter)),
    }
}

impl<G: Gate<Limiter: Clone + Send>> Gate for ObservedGate<G> {
    type Limiter = Observed<G::Limiter>;

    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Self::Limiter> {
        let observer = &self.observer;
        match self.gate.admit(parts) {
            Admission::Admitted(permit, ask) => Admission::Admitted(observer.admitted(permit), ask),
            Admission::Exempt => Admission::Exempt,
            Admission::Refused(refused) => {
                observer.refused(&refused.refusal);
                Admission::Refused(observed(refused, observer))
            }
            Admission::Waiting(waiting, ask) => {
                let (observer, wait) = (observer.clone(), observer.wait());
                let wait = async move {
                    match waiting.await {
                        Ok(permit) => Ok(wait.admitted(permit)),
                        Err(refused) => {
                            wait.refused(&refused.refusal);
                            Err(observed(refused, &observer))
                        }
                    }
                };
                Admission::Waiting(Box::pin(wait), ask)
            }
        }
    }

    fn is_keyed(&self) -> bool {
        self.gate.is_keyed()
    }
}

impl<G: Gate<Limiter: Clone + Send>, C, R> LimitLayer<G, C, R> {
    /// Records every request that is not exempt under `name`, a constant of the program: see [`tollgate_observe`]. Install the
    /// recorder of `metrics` first.
    ///
    /// Refusals are counted by the names of up to 31 legs; further legs count as `other`. If there is a limiter for each key, all
    /// legs count as `other`, since the key may be part of their names, unless [`legs`](LimitLayer::legs) lists them.
    ///
    /// # Panics
    /// If the layer has been cloned or used already.
    pub fn observed(self, name: &'static str) -> LimitLayer<ObservedGate<G>, C, R> {
        self.map_gate(|gate| {
            let observer = Observer::new(name);
            let observer = match gate.is_keyed() {
                // A request without a key, and a full map.
                true => observer.legs(&[KEY, "keyed"]),
                false => observer,
            };
            ObservedGate { gate, observer }
        })
    }
}

impl<G, C, R> LimitLayer<ObservedGate<G>, C, R> {
    /// Counts refusals by these legs, constants of the program, and by `other`.
    ///
    /// # Panics
    /// If the layer has been cloned or used already.
    #[must_use]
    pub fn legs(self, legs: &'static [&'static str]) -> Self {
        self.map_gate(|ObservedGate { gate, observer }| ObservedGate {
            gate,
            observer: observer.legs(legs),
        })
    }
}
