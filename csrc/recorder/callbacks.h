// What torch calls before and after each operator, on the thread that calls it.
#pragma once

#include <Python.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>

#include "recorder/recorder.h"
#include "recorder/torch_headers.h"

namespace opguard {

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
void on_end(const at::RecordFunction& function, at::ObserverContext* context);

/// What ends the program once the limit of events is reached.
extern std::atomic<PyObject*> stop_exception;

/// The limit is reached: this thread raises `stop_exception` as soon as its call has returned.
bool ends_here(Recorder& recorder);

/// One line: what torch throws tells its C++ stack as well.
std::string reason(const std::exception& error);

}  // namespace opguard
