//! Load shedding: the throttler, retry budgets, the waiting room.

mod basics;
mod corners;
mod waiting_room;
