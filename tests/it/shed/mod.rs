//! Load shedding: the throttler, retry budgets.

mod basics;
mod corners;
