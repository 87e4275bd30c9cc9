//! Chunks as users of the binary meet them: what a second process finds, what it says of it, and that
//! no answer ever depends on it.

mod ask;
mod chat;
mod commands;
mod faults;
mod home;
