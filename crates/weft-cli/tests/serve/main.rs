//! `weft serve` from a client's view: the binary, the bundled model, real sockets. The names of the
//! tests follow the list of requirements of common clients.

mod agent;
mod anchored;
mod answers;
mod cache;
mod drafts;
mod end;
mod harness;
mod load;
mod messages;
mod models;
mod ollama;
mod remote;
mod responses;
mod retrieval;
mod rules;
mod start;
mod streams;
mod talk;
