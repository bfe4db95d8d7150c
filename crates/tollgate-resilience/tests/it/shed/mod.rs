//! Load shedding: the throttler, retry budgets.

mod basics;
mod conservation;
mod corners;
