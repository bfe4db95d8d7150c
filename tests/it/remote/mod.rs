//! Permits that several machines share, over the store in memory.

mod age;
mod capacity;
mod change;
mod charges;
mod dropped;
mod fair;
mod faults;
mod fence;
mod fleet;
mod keyed;
mod keyed_health;
mod keyed_in_flight;
mod keyed_lease;
mod keyed_permits;
mod keyed_reserved;
mod keyed_told;
mod kinds;
mod leave;
mod levels;
mod misconfigured;
mod outages;
mod permits;
mod policies;
mod refunds;
mod window;
mod world;
