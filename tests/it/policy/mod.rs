//! Policies: legs, the queue, policies that share legs.

mod attack;
mod causes;
mod classes;
mod conditional;
mod driver;
mod long;
mod lowered_limits;
mod notifications;
mod partitions;
mod programs;
mod queue;
mod queue_order;
mod queue_published;
mod shared_legs;
