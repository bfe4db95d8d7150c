//! One macro by which limiters around others pass methods on.

/// Writes the named methods of [`Limiter`](super::limiter::Limiter), each of which asks another limiter.
///
/// `delegate!(self => self.limiter; cancel commit ...)` passes the ticket on as it is; `delegate!(self => self.limiter; some: cancel ...)`
/// where the ticket is an `Option`, of which `None` took nothing, and `second:` where it is the second of a pair.
macro_rules! delegate {
    ($this:ident => $to:expr; some: $($method:ident)*) => { $(delegate!(@some $method $this $to);)* };
    ($this:ident => $to:expr; second: $($method:ident)*) => { $(delegate!(@second $method $this $to);)* };
    ($this:ident => $to:expr; $($method:ident)*) => { $(delegate!(@$method $this $to);)* };

    (@try_reserve $this:ident $to:expr) => {
        #[inline(always)]
        fn try_reserve(&$this, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
            $to.try_reserve(demand)
        }
    };
    (@reserve_in $this:ident $to:expr) => {
        #[inline(always)]
        fn reserve_in(&$this, demand: Demand<'_>, place: &mut Option<Self::Ticket>) -> Result<(), Refusal<'_>> {
            $to.reserve_in(demand, place)
        }
    };
    (@refuses $this:ident $to:expr) => {
        #[inline(always)]
        fn refuses(&$this, demand: Demand<'_>) -> Option<Refusal<'_>> {
            $to.refuses(demand)
        }
    };
    (@admits $this:ident $to:expr) => {
        fn admits(&$this, demand: Demand<'_>) -> bool {
            $to.admits(demand)
        }
    };
    (@cancel $this:ident $to:expr) => {
        #[inline]
        fn cancel(&$this, ticket: Self::Ticket, now: &ClockReading) {
            $to.cancel(ticket, now);
        }
    };
    (@second cancel $this:ident $to:expr) => {
        #[inline]
        fn cancel(&$this, (_, ticket): Self::Ticket, now: &ClockReading) {
            $to.cancel(ticket, now);
        }
    };
    (@some cancel $this:ident $to:expr) => {
        #[inline]
        fn cancel(&$this, ticket: Self::Ticket, now: &ClockReading) {
            if let Some(ticket) = ticket {
                $to.cancel(ticket, now);
            }
        }
    };
    (@commit $this:ident $to:expr) => {
        #[inline(always)]
        fn commit(&$this, ticket: &mut Self::Ticket, now: &ClockReading) {
            $to.commit(ticket, now);
        }
    };
    (@some commit $this:ident $to:expr) => {
        #[inline]
        fn commit(&$this, ticket: &mut Self::Ticket, now: &ClockReading) {
            if let Some(ticket) = ticket {
                $to.commit(ticket, now);
            }
        }
    };
    (@settle $this:ident $to:expr) => {
        #[inline]
        fn settle(&$this, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
            $to.settle(ticket, actual)
        }
    };
    (@second settle $this:ident $to:expr) => {
        fn settle(&$this, (_, ticket): &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
            $to.settle(ticket, actual)
        }
    };
    // A leg that passed the request uncharged counts as corrected if it counts the cost at all.
    (@some settle $this:ident $to:expr) => {
        fn settle(&$this, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
            match ticket {
                Some(ticket) => $to.settle(ticket, actual),
                None => actual.actual().is_some().into(),
            }
        }
    };
    (@finish $this:ident $to:expr) => {
        #[inline(always)]
        fn finish(&$this, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
            $to.finish(ticket, outcome, now);
        }
    };
    (@some finish $this:ident $to:expr) => {
        #[inline]
        fn finish(&$this, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
            if let Some(ticket) = ticket {
                $to.finish(ticket, outcome, now);
            }
        }
    };
    (@finish_in $this:ident $to:expr) => {
        #[inline(always)]
        fn finish_in(&$this, ticket: &Self::Ticket, outcome: Outcome, now: &ClockReading) {
            $to.finish_in(ticket, outcome, now);
        }
    };
    (@finish_may_panic $this:ident $to:expr) => {
        #[inline(always)]
        fn finish_may_panic(&$this) -> bool {
            $to.finish_may_panic()
        }
    };
    (@forget $this:ident $to:expr) => {
        #[inline]
        fn forget(&$this, ticket: Self::Ticket) {
            $to.forget(ticket);
        }
    };
    (@second forget $this:ident $to:expr) => {
        fn forget(&$this, (_, ticket): Self::Ticket) {
            $to.forget(ticket);
        }
    };
    (@some forget $this:ident $to:expr) => {
        fn forget(&$this, ticket: Self::Ticket) {
            if let Some(ticket) = ticket {
                $to.forget(ticket);
            }
        }
    };
    (@ready_at $this:ident $to:expr) => {
        #[inline]
        fn ready_at(&$this, demand: Demand<'_>) -> ReadyAt<'_> {
            $to.ready_at(demand)
        }
    };
    (@callbacks $this:ident $to:expr) => {
        #[inline]
        fn callbacks(&$this) -> Callbacks {
            $to.callbacks()
        }
    };
    (@name $this:ident $to:expr) => {
        fn name(&$this) -> Option<&str> {
            $to.name()
        }
    };
    (@clock $this:ident $to:expr) => {
        #[inline]
        fn clock(&$this) -> Option<&Clock> {
            $to.clock()
        }
    };
    (@clocks $this:ident $to:expr) => {
        fn clocks<'a>(&'a $this, visit: &mut dyn FnMut(&'a Clock)) {
            $to.clocks(visit);
        }
    };
    (@queues $this:ident $to:expr) => {
        fn queues<'a>(&'a $this, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
            $to.queues(visit);
        }
    };
    (@visit_status $this:ident $to:expr) => {
        fn visit_status(&$this, visit: &mut dyn FnMut(Status<'_>)) {
            $to.visit_status(visit);
        }
    };
    (@visit_sources $this:ident $to:expr) => {
        fn visit_sources<'a>(&'a $this, ticket: &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
            $to.visit_sources(ticket, visit);
        }
    };
    (@second visit_sources $this:ident $to:expr) => {
        fn visit_sources<'a>(&'a $this, (_, ticket): &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
            $to.visit_sources(ticket, visit);
        }
    };
    (@some visit_sources $this:ident $to:expr) => {
        fn visit_sources<'a>(&'a $this, ticket: &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
            if let Some(ticket) = ticket {
                $to.visit_sources(ticket, visit);
            }
        }
    };
    (@explain_legs $this:ident $to:expr) => {
        fn explain_legs(&$this, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
            $to.explain_legs(demand, visit);
        }
    };
    (@is_pristine $this:ident $to:expr) => {
        #[inline]
        fn is_pristine(&$this, now: &ClockReading) -> bool {
            $to.is_pristine(now)
        }
    };
}
pub(crate) use delegate;
