//! Chunks from a user's view: what a second process finds and reports, and that no answer ever
//! depends on it.

mod ask;
mod chat;
mod commands;
mod demo;
mod faults;
mod home;
mod names;
mod parcels;
mod remote;
