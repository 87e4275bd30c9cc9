//! `weft serve` as clients meet it: the binary, the bundled model, real sockets. The names of the
//! tests follow the list of what a server must do for the clients that people use.

mod answers;
mod cache;
mod end;
mod harness;
mod load;
mod rules;
mod start;
mod streams;
