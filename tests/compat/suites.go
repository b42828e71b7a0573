package main

func franzSuite() job { return kafkaTools() }
