//! Gives refused clients a retry time, and honours it.

mod appointments;
mod gate;
mod room;
mod service_rate;

pub use gate::WaitingRoomGate;
pub use room::{RoomFull, WaitingRoom, WaitingRoomError, WaitingRoomStats};
